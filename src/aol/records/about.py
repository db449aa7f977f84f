"""`about.json`: what a run is besides its settings: the names and sizes of its classes, versions, how to repeat it."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

from aol._version import __version__
from aol.records.files import write_if_new
from aol.records.tables import DamagedRecordsError

FILE = "about.json"


@dataclass(frozen=True)
class About:
    """What a run is.

    Args:
        method: what was done about the imbalance, in a few words; the same for all seeds.
        seed: of the run, where it has one.
        classes: their names.
        counts: how many training samples each has.
        epochs: how many there will be, where that is known.
        versions: of what the figures depend on.
        command: what to type to repeat the run, where that is known.
        data: the data set's name or folder, where there is one that `aol` can open.
        data_dir: where that was looked for.
        directory: the folder in which the run was started; relative names are meant from there.
    """

    method: str
    seed: int | None
    classes: list[str]
    counts: list[int]
    epochs: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    command: str | None = None
    data: str | None = None
    data_dir: str | None = None
    directory: str | None = None

    def write(self, folder: Path) -> None:
        """Write it into the folder of a run."""
        write_if_new(folder / FILE, as_json(asdict(self)))


def as_json(value: object) -> bytes:
    """Return a value as a file's content; what of a path is no UTF-8 becomes an escape, which reads back the same."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def read_about(folder: Path) -> About | None:
    """Read what a run is; None where nobody said."""
    path = folder / FILE
    found = read_json(path)
    if found is None:
        return None
    try:
        known = {each.name for each in fields(About)}
        about = About(**{name: value for name, value in found.items() if name in known})  # type: ignore[arg-type]
        _check(about)
    except (TypeError, ValueError) as error:
        raise DamagedRecordsError(f"{path}: damaged ({error}).") from error
    return about


def _check(about: About) -> None:
    """Refuse what another program may have put there: everything after this takes the types at their word."""
    texts = ("command", "data", "data_dir", "directory")
    for name in ("method", *(name for name in texts if getattr(about, name) is not None)):
        if not isinstance(getattr(about, name), str):
            raise TypeError(f"{name} must be text")
    for name in ("seed", "epochs"):
        if not isinstance(getattr(about, name), int | None):
            raise TypeError(f"{name} must be a whole number")
    for name in ("classes", "counts"):
        if not isinstance(getattr(about, name), list):
            raise TypeError(f"{name} must be a list")
    if not all(isinstance(each, str) for each in about.classes):
        raise TypeError("classes must be texts")
    if not all(isinstance(each, int) and each >= 0 for each in about.counts):
        raise TypeError("counts must be whole numbers of 0 or more")
    if not isinstance(about.versions, dict):
        raise TypeError("versions must be texts by name")
    if len(about.classes) != len(about.counts):
        raise ValueError("classes and counts differ in number")


def read_json(path: Path) -> dict[str, object] | None:
    """Read a JSON object; None where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedRecordsError(f"{path}: not a whole JSON file.") from error
    if not isinstance(found, dict):
        raise DamagedRecordsError(f"{path}: not a JSON object.")
    return found


def versions(device: torch.device) -> dict[str, str]:
    """Return what a figure depends on besides its settings."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {"aol": __version__, "torch": torch.__version__, "python": platform.python_version(), "device": name}
