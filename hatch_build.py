"""Build step: the README as PyPI shows it, where links to files of the project lead nowhere.

If `project.urls` has a `Repository`, links and pictures become addresses there. Until it has one, links become their
text and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?![a-z]+:|#)(?P<file>[^)\s]+)\)")


def for_pypi(text: str, repository: str | None) -> str:
    """Return a README without relative links.

    >>> for_pypi("[docs](docs/a.md) ![one](one.svg)", "https://example.org/me/aol")
    '[docs](https://example.org/me/aol/blob/main/docs/a.md) ![one](https://example.org/me/aol/raw/main/one.svg)'
    >>> for_pypi("[docs](docs/a.md) ![one](one.svg)", None)
    'docs '
    """

    def moved(link: re.Match[str]) -> str:
        picture, shown, file = link.group("picture", "text", "file")
        if repository is None:
            return "" if picture else shown
        return f"{picture}[{shown}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/main/{file})"

    return _LINK.sub(moved, text)


class CustomMetadataHook(MetadataHookInterface):
    """Sets `readme` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write the README into the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_pypi(text, repository)}
