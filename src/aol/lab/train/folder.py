"""What a folder of runs was asked for and holds: its request, whether records are valid, and groups in progress.

A record that is not that of a run with its settings would enter a table silently, or break it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aol._files import read_json, write_atomically
from aol.lab.settings import Settings, WrongSettingsError
from aol.records.record import DamagedRunError, Json, Run
from aol.records.store import REQUEST, Store, requested_ids, write_request

CHECKPOINT_FORMAT = 8
OVER_TIME = ("age", "test_accuracy", "train_accuracy")  # readings by class that studies keep of every epoch
_DIGEST = hashlib.sha256().digest_size

# Requests: `request.json`, which `aol resume` reads


def prepare(
    runs: Sequence[Settings],
    store: Store,
    request: dict[str, Json],
    *,
    resume: bool = False,
    fresh: bool = False,
    latest: Path | None = None,
) -> None:
    """Note what is asked for in the folder, which the caller has locked; nothing that was trained is overwritten.

    `resume` continues the same runs, `fresh` deletes those that were and are asked for first. A folder that holds runs
    is refused without either. `latest` becomes a link to the folder beside it.
    """
    out, ids = store.folder, [run.run_id for run in runs]
    before = requested_ids(out)  # none if the file is damaged: it is written anew
    if fresh:
        old = {*before, *ids}
        for group in begun_groups(store):
            if not group.ids.isdisjoint(old):
                remove_group(group.folder)
        for folder in (out / "runs").glob("*"):
            if folder.name in old:
                shutil.rmtree(folder)
    begun = any(out.glob("work/*/checkpoint.pt")) or bool(store.ids())
    if begun and not resume and not fresh:
        raise WrongSettingsError(
            f"{out} already holds runs: add --resume to continue them, --fresh to delete them, or choose another --out."
        )
    if begun and (fresh or (before and before != ids)):
        raise WrongSettingsError(f"{out} holds other runs: repeat their settings, or choose another --out.")
    write_request(out, {**request, "ids": list(ids), "runs": [dict(run.as_dict()) for run in runs]})
    if latest is not None and (latest.is_symlink() or not latest.exists()):  # not a folder of somebody's own
        with contextlib.suppress(OSError):  # where links cannot be made
            latest.unlink(missing_ok=True)
            latest.symlink_to(out.name, target_is_directory=True)


def requested_runs(request: dict[str, Json]) -> list[Settings]:
    """Return the runs of a request."""
    runs = request["runs"]
    assert isinstance(runs, list)
    try:
        return [Settings(**run) for run in runs]  # type: ignore[arg-type]
    except (AttributeError, TypeError) as error:
        raise WrongSettingsError(f"{REQUEST} was written by another version of aol: {error}.") from error


# Records


def settings_of(run: Run) -> Settings | None:
    """Return the settings of a run; None for a run that the engine did not train."""
    try:
        return Settings(**run.settings)  # type: ignore[arg-type]
    except (TypeError, WrongSettingsError):
        return None


def problem(run: Run, settings: Settings) -> str | None:
    """Return why a record cannot be that of a run with these settings; None if it can."""
    if run.id != settings.run_id:
        return f"its id is {run.id}, and its settings give {settings.run_id}"
    if run.settings != settings.as_dict() and settings_of(run) != settings:
        return "it has other settings"
    if not run.finished or run.failed_at_epoch is not None:  # weights that are not finite have no readings
        return None
    if not np.array_equal(run.epochs, np.arange(1, settings.epochs + 1)):
        return f"it has {len(run.epochs)} epochs instead of {settings.epochs}"
    if "test_accuracy" not in run.curves or np.isnan(run.curves["test_accuracy"][-1]):
        return "it has no test_accuracy"
    return None


def read_valid(store: Store, settings: Settings) -> Run | None:
    """Return the record of a run, None if there is none; `DamagedRunError` says why one cannot be used."""
    run = store.read(settings.run_id)
    if run is not None and (why := problem(run, settings)):
        raise DamagedRunError(why)
    return run


def is_complete(run: Run | None, require: Sequence[str] = ()) -> bool:
    """Return whether a record is that of a finished run with these readings over time, as far as it can have them."""
    if run is None or not run.finished:
        return False
    possible = [name for name in require if name != "age" or run.settings.get("signal") != "none"]
    return set(possible) <= set(run.over_time)


# Groups in progress


@dataclass(frozen=True)
class RunGroup:
    """Runs that are trained as one network, and the folder in which they are while they train."""

    runs: tuple[Settings, ...]
    folder: Path

    @property
    def checkpoint(self) -> Path:
        """The file with everything that is needed to continue."""
        return self.folder / "checkpoint.pt"

    @property
    def ids(self) -> set[str]:
        """The ids of the runs."""
        return {run.run_id for run in self.runs}


def new_group(runs: Sequence[Settings], store: Store) -> RunGroup:
    """Return the group of some runs; its name follows from theirs."""
    name = hashlib.sha256(" ".join(run.run_id for run in runs).encode()).hexdigest()[:12]
    return RunGroup(tuple(runs), store.folder / "work" / name)


def begun_groups(store: Store) -> list[RunGroup]:
    """Return the groups that were begun in a folder; without runs where a process was killed as it noted them."""
    begun = []
    for folder in sorted((store.folder / "work").glob("*")):
        runs: tuple[Settings, ...] = ()
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            runs = tuple(Settings(**run) for run in read_json(folder / "group.json")["runs"])
        begun.append(RunGroup(runs, folder))
    return begun


def remove_group(folder: Path) -> None:
    """Remove the folder of a group."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # unless there are others


def save_checkpoint(path: Path, state: Mapping[str, object]) -> None:
    """Write tensors and primitives as a checkpoint, with a checksum behind them."""
    import torch

    buffer = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **state}, buffer)
    content = buffer.getvalue()
    write_atomically(path, content + hashlib.sha256(content).digest())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it is ever executed. ValueError if it cannot be used."""
    import torch

    if not path.is_file():  # to open a pipe would be to wait
        raise ValueError(f"{path} is not a regular file")
    content = path.read_bytes()
    content, checksum = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(content).digest() != checksum:
        raise ValueError(f"{path} is damaged: its checksum does not match its content")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises of a file that it has not written
        raise ValueError(f"{path} is damaged: it is not a checkpoint of tensors and primitives") from error
    if state["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"{path} was written by another version of aol")
    return state
