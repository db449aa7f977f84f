"""Build step: the addresses of the project, and the README as PyPI shows it, where links to files lead nowhere.

The addresses are those of the repository in which GitHub Actions builds, so that a fork has its own. Links and pictures
of the README then lead there. Built elsewhere, there are no addresses, links become their text, and pictures are left
out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
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


def addresses(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of the project, by what PyPI calls them.

    >>> addresses({"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "me/aol"})["Issues"]
    'https://example.org/me/aol/issues'
    """
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
    if any(not environment.get(name) for name in names):
        return {}
    home = "/".join(environment[name] for name in names)
    return {"Repository": home, "Issues": f"{home}/issues", "Changelog": f"{home}/blob/main/CHANGELOG.md"}


class CustomMetadataHook(MetadataHookInterface):
    """Sets `urls` and `readme` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write addresses and README into the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = addresses(os.environ)
        repository = metadata["urls"].get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_pypi(text, repository)}
