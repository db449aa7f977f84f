"""A folder of runs: `FOLDER/runs/ID/run.json`. Finds, reads, writes and locks; trains nothing.

`FOLDER/request.json` says what was asked for, and `FOLDER/work/GROUP/` holds the runs that are being trained.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aol._files import NotRegularError, acquire, locked, read_json, usable, write_if_changed
from aol.records.record import FILE, DamagedRunError, Json, Run, content_of, decode, write_run

REQUEST = "request.json"
_DEPTH = 5  # folders below a path in which runs are looked for


class NoRunsError(ValueError):
    """A path without runs; the message names it."""


class Store:
    """The runs in a folder, by their ids. Reading creates nothing.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.get("0123456789ab") is None, store.ids()
    (True, [])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / run_id

    def read(self, run_id: str) -> Run | None:
        """Return a run's record, or None if there is none; `DamagedRunError` says why one cannot be used."""
        try:
            run = decode(content_of(self.path(run_id) / FILE))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if run.id != run_id:
            raise DamagedRunError(f"it is the record of run {run.id}")
        return run

    def get(self, run_id: str) -> Run | None:
        """Return a run's record, or None if there is none that can be used."""
        try:
            return self.read(run_id)
        except DamagedRunError:
            return None

    def write(self, run: Run) -> None:
        """Write a run's record, replacing the one that is there."""
        write_run(self.path(run.id), run)

    def ids(self) -> list[str]:
        """Return the ids of all runs, damaged ones included, sorted."""
        return sorted(path.parent.name for path in (self.folder / "runs").glob(f"*/{FILE}"))

    def __iter__(self) -> Iterator[Run]:
        """Yield every run that can be read."""
        for run_id in self.ids():
            if (run := self.get(run_id)) is not None:
                yield run

    def prepare(self) -> None:
        """Make the folder; `UnusableFolderError` if it cannot be written to."""
        refuse_old_format(self.folder)
        with usable(self.folder):
            runs = self.folder / "runs"
            runs.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=runs).close()  # an existing folder may still be read-only

    def lock(self, part: str = "") -> contextlib.AbstractContextManager[None]:
        """Hold the folder, or a named part of it, for this process; `FolderInUseError` if another process has it."""
        return locked(self.folder, part)


# What was asked for

_TURN = 60.0  # seconds to wait for other processes that note their share: each writes a small file
_REPEAT = "Repeat the command that made it: aol train and aol stream with --resume, or aol study run."


def write_request(folder: Path, request: dict[str, Json]) -> None:
    """Note what was asked for, so that `aol resume FOLDER` needs no other words; shares of the same runs add up."""
    options: Any = request.get("options", {})
    with contextlib.ExitStack() as turn:
        if shares := options.get("shares"):  # other shares may be noted at the same moment
            turn.callback(acquire(folder, folder / ".lock_request", "--out", _TURN).release)
            request = {**request, "options": {**options, "shares": _all_shares(folder, request["ids"], shares)}}
        write_if_changed(folder / REQUEST, (json.dumps(request, indent=1) + "\n").encode())


def _all_shares(folder: Path, ids: Json, shares: list[Json]) -> list[Json]:
    """Return these shares of some runs, and those that were asked for before; none: all runs."""
    before: Any = {}
    with contextlib.suppress(DamagedRunError):
        before = read_request(folder) or {}
    if before.get("ids") != ids:
        return shares
    noted = before.get("options", {}).get("shares")
    return [*noted, *(each for each in shares if each not in noted)] if noted else []


def read_request(folder: Path) -> dict[str, Json] | None:
    """Return what was asked for, or None."""
    path = folder / REQUEST
    try:
        found = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (NotRegularError, IsADirectoryError, ValueError) as error:
        raise DamagedRunError(f"{path}: it is incomplete or not JSON. {_REPEAT}") from error
    if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
        raise DamagedRunError(f"{path}: it does not say which runs were asked for. {_REPEAT}")
    return found


def resume_command(folder: Path) -> str:
    """Return the command that continues what was asked for in a folder."""
    return shlex.join(["aol", "resume", str(folder)])


def requested_ids(folder: Path) -> list[str]:
    """Return the ids of the runs that were asked for, in their order; none where that cannot be read."""
    try:
        asked = (read_request(folder) or {}).get("ids")
    except DamagedRunError:  # the runs can be read without it
        return []
    return [str(each) for each in asked] if isinstance(asked, list) else []


# Finding runs


def find_runs(*paths: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of all runs in some folders, in the order in which the runs were asked for.

    Each path is the folder of a run, the `--out` of a command, the folder of a study or of a `Recorder`, or a folder
    of those. Runs without a finished epoch are included as soon as they have a record.
    """
    found = [folder for path in paths for folder in _found(Path(path))]
    return list(dict.fromkeys(folder.resolve() for folder in found))


def _found(path: Path) -> list[Path]:
    if not path.exists():
        raise NoRunsError(f"{path}: no such folder.")
    if not path.is_dir():
        raise NoRunsError(f"{path} is a file, not the folder of a run.")
    found = list(_search(path, _DEPTH))
    if not found and not (path / REQUEST).is_file():
        for folder in (path, *path.glob("*/"), *path.glob("*/*/")):
            refuse_old_format(folder)
        raise NoRunsError(f"{path}: there are no runs in it.")
    return found


def _search(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / FILE).is_file():
        yield folder
        return
    if (folder / REQUEST).is_file():
        yield from _in_order(folder)
    elif depth:
        for each in sorted(folder.iterdir()):
            if each.is_dir() and not each.is_symlink() and not each.name.startswith("."):
                yield from _search(each, depth - 1)


def _in_order(folder: Path) -> Iterator[Path]:
    """Yield the runs of a command, those of the last request first, in its order."""
    there = {path.parent.name: path.parent for path in sorted((folder / "runs").glob(f"*/{FILE}"))}
    yield from (there.pop(each) for each in requested_ids(folder) if each in there)
    yield from there.values()


def refuse_old_format(folder: Path) -> None:
    """Raise if a folder holds runs of aol 0.1.0, whose files this version does not read."""
    old = (
        (folder / "epochs.csv").is_file()
        or any(folder.glob("runs/*/epochs.csv"))
        or any(folder.glob("records/*.json"))
        or (folder.name == "records" and any(folder.glob("*.json")))
        or ((folder / "stacks.json").is_file() and (folder / "runs.json").is_file())
    )
    if old:
        raise NoRunsError(
            f"{folder} was written by aol 0.1.0, which stored runs in another format: "
            "train again into a new folder, or read it with aol 0.1.0."
        )
