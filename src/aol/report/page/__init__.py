"""The page: one HTML file that shows where runs have been wrong, for how long, and what to do about it.

`payload.py` says what it knows, `document.py` puts it together, `assets/` draws it. Needs the extra `report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aol.records.files import write_atomically
from aol.report.page.document import document
from aol.report.page.payload import payload
from aol.report.story import Story


def write_page(stories: Sequence[Story], path: Path, *, refresh: float | None = None) -> int:
    """Write the page of some runs, whole or not at all, and return its size in bytes.

    With `refresh`, an open page loads itself again after that many seconds: for runs that go on.
    """
    names = ", ".join(dict.fromkeys(story.method for story in stories))
    content = document(payload(stories, refresh=refresh), f"Age of Learning: {names[:80]}").encode()
    write_atomically(path, content)
    return len(content)


__all__ = ["write_page"]
