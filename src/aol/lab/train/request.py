"""What was asked for in a folder: `request.json`, which `aol resume` reads."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.groups import begun_groups, remove_group
from aol.records.record import Json
from aol.records.store import REQUEST, Store, requested_ids, write_request


def prepare(
    runs: Sequence[Settings], store: Store, request: dict[str, Json], *, resume: bool = False, fresh: bool = False
) -> None:
    """Note what is asked for in the folder, which the caller has locked; nothing that was trained is overwritten.

    `resume` continues the same runs, `fresh` deletes those that were and are asked for first. A folder that holds runs
    is refused without either.
    """
    out, ids = store.folder, [run.run_id for run in runs]
    before = requested_ids(out)  # none if the file is damaged: it is written anew
    if fresh:
        _delete(store, {*before, *ids})
    begun = any(out.glob("work/*/checkpoint.pt")) or bool(store.ids())
    if begun and not resume and not fresh:
        raise WrongSettingsError(
            f"{out} already holds runs: add --resume to continue them, --fresh to delete them, or choose another --out."
        )
    if begun and (fresh or (before and before != ids)):
        raise WrongSettingsError(f"{out} holds other runs: repeat their settings, or choose another --out.")
    write_request(out, {**request, "ids": list(ids), "runs": [dict(run.as_dict()) for run in runs]})


def _delete(store: Store, ids: Collection[str]) -> None:
    """Delete runs with these ids, begun ones included; nothing else in the folder is touched."""
    for group in begun_groups(store):
        if not group.ids.isdisjoint(ids):
            remove_group(group.folder)
    for folder in (store.folder / "runs").glob("*"):
        if folder.name in ids:
            shutil.rmtree(folder)


def requested_runs(request: dict[str, Json]) -> list[Settings]:
    """Return the runs of a request."""
    runs = request["runs"]
    assert isinstance(runs, list)
    try:
        return [Settings.of(run) for run in runs]  # type: ignore[arg-type]
    except (AttributeError, TypeError) as error:
        raise WrongSettingsError(f"{REQUEST} was written by another version of aol: {error}.") from error


_OPTIONS = {
    "data_dir": str | None, "device": str, "stacking": str, "together": int | None, "workers": int | None,
    "checkpoint_seconds": float | int, "deterministic": bool, "keep_samples": bool,
}  # fmt: skip
_CHOICE = {"only": list, "seeds": str | None, "set": list, "precision": str | None, "data": list}


def requested_options(request: Mapping[str, Json]) -> dict[str, Json]:
    """Return how the runs of a request are trained. Deletion and addresses come from the command line alone."""
    return _known("options", request, _OPTIONS)


def requested_choice(request: Mapping[str, Json]) -> dict[str, Json]:
    """Return which part of a study was asked for."""
    return _known("choice", request, _CHOICE)


def _known(part: str, request: Mapping[str, Json], kinds: Mapping[str, Any]) -> dict[str, Json]:
    """Return what is known of a part of a request; refuse values of another type."""
    given = request.get(part) or {}
    if not isinstance(given, dict):
        raise WrongSettingsError(f"{REQUEST}: {part} must be values by name, not {given!r}.")
    known = {name: value for name, value in given.items() if name in kinds}
    for name, value in known.items():
        words = all(isinstance(word, str) for word in value) if isinstance(value, list) else True
        if not words or not isinstance(value, kinds[name]) or (isinstance(value, bool) and kinds[name] is not bool):
            raise WrongSettingsError(f"{REQUEST}: {part}, {name} must not be {value!r}.")
    return known
