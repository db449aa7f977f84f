"""The folder of a stack: its runs, its checkpoint, where it stands, and who holds it or has held it.

Assumes that others read and write there at the same time: every file is seen as it was or as it is, never in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aol.engine.settings import Settings
from aol.study import hosts


@dataclass(frozen=True)
class Stack:
    """Some runs that are trained as one, what is to be kept of them, and the folder where they stand meanwhile."""

    folder: Path
    runs: tuple[Settings, ...]
    keep: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def checkpoint(self) -> Path:
        """Where everything is that is needed to go on."""
        return self.folder / "checkpoint.pt"

    def stand(self) -> int:
        """Return after which epoch its trainer last was; zero at the start."""
        try:
            return int(json.loads((self.folder / "epoch").read_text())["epoch"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def note(self, epoch: int) -> None:
        """Write down after which epoch its trainer is, and who that is."""
        with contextlib.suppress(FileNotFoundError):  # taken over and finished by another: `Claims.check` says so
            overwrite(self.folder / "epoch", json.dumps({"epoch": epoch, **hosts.myself()}))


def introduce(folder: Path, turn: int) -> None:
    """Write down that this process is the holder of that turn, which only one can be.

    A link, as it is made with its text in one step: a file whose maker is killed before it writes says of nobody.
    """
    os.symlink(json.dumps(hosts.myself()), folder / f"holder-{turn}")
    overwrite(folder / "beat", f"{turn} 0")


def holder(folder: Path, turn: int) -> dict[str, Any]:
    """Return who holds or held that turn; nothing if that is not said."""
    try:
        return _table(os.readlink(folder / f"holder-{turn}"))
    except OSError:
        return {}


def turn_of(folder: Path) -> int:
    """Return the number of the last holder; zero for a folder that is gone."""
    return max((int(path.name[7:]) for path in entries(folder) if path.name.startswith("holder-")), default=0)


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, in order, without files that are still being written; nothing if it is gone."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []


def read(path: Path) -> dict[str, Any]:
    """Return what a small file of ours says; nothing if it is not there or damaged."""
    try:
        return _table(path.read_text())
    except (FileNotFoundError, UnicodeDecodeError):
        return {}


def _table(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def overwrite(path: Path, text: str) -> None:
    """Write a small file that readers see as it was or as it is; it need not outlive a power cut."""
    part = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    part.write_text(text)
    os.replace(part, path)
