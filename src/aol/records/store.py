"""A folder of runs: `FOLDER/runs/ID/run.json`, or lines of `FOLDER/runs.jsonl`. Finds, reads, writes and locks.

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

from aol._files import locked, read_json, usable, write_if_changed
from aol.records.record import FILE, PACKED, DamagedRunError, Json, Run, content_of, decode, packed_runs, write_run

REQUEST = "request.json"
_DEPTH = 5  # folders below a path in which runs are looked for


class NoRunsError(ValueError):
    """A path without runs; the message names it."""


class Store:
    """The runs in a folder, by their ids. Reading creates nothing."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / run_id

    def read(self, run_id: str) -> Run | None:
        """Return a run's record, or None if there is none; `DamagedRunError` says why one cannot be used."""
        try:
            run = decode(content_of(self.path(run_id)))
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
        alone = {path.parent.name for path in (self.folder / "runs").glob(f"*/{FILE}")}
        return sorted(alone | packed_runs(self.folder / PACKED).keys())

    def __iter__(self) -> Iterator[Run]:
        """Yield every run that can be read."""
        yield from filter(None, map(self.get, self.ids()))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder, and hold it for this process; `UnusableFolderError` or `FolderInUseError` if it cannot."""
        with usable(self.folder):
            runs = self.folder / "runs"
            runs.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=runs).close()  # an existing folder may still be read-only
        with locked(self.folder):
            yield


def write_request(folder: Path, request: dict[str, Json]) -> None:
    """Note what was asked for, so that `aol resume FOLDER` needs no other words."""
    write_if_changed(folder / REQUEST, (json.dumps(request, indent=1) + "\n").encode())


def read_request(folder: Path) -> dict[str, Json] | None:
    """Return what was asked for, or None."""
    path = folder / REQUEST
    try:
        request: dict[str, Json] = read_json(path)
        if not isinstance(request["runs"], list):
            raise TypeError
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        repeat = "Repeat the command that made it: aol train and aol stream with --resume, or aol study run."
        raise DamagedRunError(f"{path}: it does not say which runs were asked for. {repeat}") from error
    return request


def resume_command(folder: Path) -> str:
    """Return the command that continues what was asked for in a folder."""
    return shlex.join(["aol", "resume", str(folder)])


def requested_ids(folder: Path) -> list[str]:
    """Return the ids of the runs that were asked for, in their order; none where that cannot be read."""
    try:
        asked = (read_request(folder) or {}).get("ids")
    except DamagedRunError:  # the runs can be read without it
        return []
    return [str(run_id) for run_id in asked] if isinstance(asked, list) else []


def find_runs(*paths: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of all runs in some folders, in the order of requests; those of packed runs are names only."""
    return list(dict.fromkeys(folder for path in paths for folder in _runs_in(Path(path))))


def _runs_in(path: Path) -> list[Path]:
    if path.is_dir():
        folders = list(_search(path.resolve(), _DEPTH))
        if not folders and not (path / REQUEST).is_file():
            raise NoRunsError(f"{path}: there are no runs in it.")
        return folders
    if path.name in packed_runs(path.parent.parent / PACKED):
        return [path.resolve()]
    raise NoRunsError(f"{path} is a file, not the folder of a run." if path.exists() else f"{path}: no such folder.")


def _search(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / FILE).is_file():
        yield folder
        return
    asked = (folder / REQUEST).is_file()
    if asked or (folder / PACKED).is_file():  # those of the last request first, in its order
        store = Store(folder)
        there = dict.fromkeys(store.ids())
        first = [own for own in requested_ids(folder) if own in there]
        yield from (store.path(run_id) for run_id in dict.fromkeys([*first, *there]))
    if depth and not asked:
        for below in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if below.is_dir(follow_symlinks=False) and not below.name.startswith("."):
                yield from _search(folder / below.name, depth - 1)
