"""Which folders of data, and functions of their own, this user has trained with on this machine.

A run names both, and may come from anywhere: a page must not show the pictures of a folder, and resuming must not call
a function, only because a run names it. Each is remembered as a small file, outside all runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from aol._files import write_if_changed


def remember(folder: Path) -> None:
    """Note that this user has trained on a folder; where that cannot be written, nothing is noted."""
    with contextlib.suppress(OSError):
        write_if_changed(_note(folder), os.fsencode(folder.absolute()) + b"\n")


def is_remembered(folder: Path) -> bool:
    """Return whether this user has trained on a folder, on this machine."""
    return _note(folder).is_file()


def _note(folder: Path) -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return base / "aol" / "trained-on" / hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()
