"""What was asked for in a folder: `request.json`, which `aol resume` reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.groups import begun_groups, remove_group
from aol.records.record import Json
from aol.records.store import REQUEST, Store, requested_ids, write_request


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
        _link(latest, out.name)


def _link(link: Path, target: str) -> None:
    """Point a symbolic link at a folder beside it, atomically; where links cannot be made, do nothing."""
    temporary = link.with_name(f".latest-{os.getpid()}")
    try:
        temporary.symlink_to(target, target_is_directory=True)
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)


def requested_runs(request: dict[str, Json]) -> list[Settings]:
    """Return the runs of a request."""
    runs = request["runs"]
    assert isinstance(runs, list)
    try:
        return [Settings(**run) for run in runs]  # type: ignore[arg-type]
    except (AttributeError, TypeError) as error:
        raise WrongSettingsError(f"{REQUEST} was written by another version of aol: {error}.") from error


# What is taken from a request; deletion and addresses come from the command line alone.
_PARTS = {
    "options": (
        "data_dir", "device", "stacking", "together", "workers", "checkpoint_seconds", "deterministic", "keep_samples"
    ),
    "choice": ("only", "seeds", "set", "data"),
}  # fmt: skip


def requested(part: str, request: Mapping[str, Any]) -> dict[str, Json]:
    """Return how the runs of a request are trained ("options"), or which part of a study was asked for ("choice")."""
    given = request.get(part) or {}
    return {name: given[name] for name in _PARTS[part] if name in given}
