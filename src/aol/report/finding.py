"""Which folders hold the records of a run, and in which order they were asked for. Knows the names of files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from aol.records.about import read_json


class NoRecordsError(ValueError):
    """A path without records; the message names it."""


def run_folders(path: Path) -> list[Path]:
    """Return the folders of runs in a folder, in the order in which they were asked for."""
    if not path.exists():
        raise NoRecordsError(f"{path}: no such folder.")
    if not path.is_dir():
        raise NoRecordsError(f"{path}: a file, not the folder of a run.")
    found = list(_search(path, 5))
    if not found:
        raise NoRecordsError(f"{path}: no records of a run in it.{_studied(path)}")
    return [folder for folder in found if (folder / "epochs.csv").is_file()]


def _studied(path: Path) -> str:
    """Say what to do with the folder of a study, which keeps its runs in another way."""
    kept = path if path.name == "records" else path / "records"
    found = kept.is_dir() and any(kept.glob("*.json"))
    return f" It holds those of a study: aol study show NAME --out {kept.parent}" if found else ""


def _search(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders that are, or will be, a run's."""
    if (folder / "epochs.csv").is_file() or (folder / "about.json").is_file():
        yield folder
        return
    asked = folder / "runs.json"
    inside = sorted(each for each in folder.iterdir() if each.is_dir() and not each.is_symlink())
    if asked.is_file():
        yield folder  # a promise, if nothing else
        yield from _in_order(folder / "runs", asked)
    elif depth:
        for each in inside:
            if not each.name.startswith("."):
                yield from _search(each, depth - 1)


def _in_order(runs: Path, asked: Path) -> Iterator[Path]:
    """Yield the folders of runs in the order of the settings in `runs.json`."""
    try:
        wanted = [json.dumps(each, sort_keys=True) for each in json.loads(asked.read_text())]
    except ValueError:
        wanted = []
    place = {text: number for number, text in enumerate(wanted)}
    there = sorted(runs.iterdir()) if runs.is_dir() else []

    def rank(folder: Path) -> int:
        return place.get(json.dumps(read_json(folder / "settings.json"), sort_keys=True), len(place))

    yield from sorted((folder for folder in there if (folder / "epochs.csv").is_file()), key=rank)
