"""Whether a record can be that of a run with its settings.

`record.decode` checks types, lengths and the checksum. A checksum does not show who wrote a file: a record that does
not fit its settings would enter a table silently, or break it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aol.lab.data.named import NUM_CLASSES
from aol.lab.settings import Settings, WrongSettingsError
from aol.records.record import DamagedRunError, Run
from aol.records.store import Store

_READ_ON_TEST = ("test_accuracy", "validation_accuracy", "averaged_accuracy")  # at the same epochs, all or none


def settings_of(run: Run) -> Settings | None:
    """Return the settings of a run; None for a run that the engine did not train."""
    try:
        return Settings.of(run.settings)  # type: ignore[arg-type]
    except (TypeError, WrongSettingsError):
        return None


def problem(run: Run, settings: Settings) -> str | None:
    """Return why a record cannot be that of a run with these settings; None if it can.

    An unfinished run is only compared with the settings.
    """
    if run.id != settings.run_id:
        return f"its id is {run.id}, and its settings give {settings.run_id}"
    if settings_of(run) != settings:
        return "it has other settings"
    classes = NUM_CLASSES.get(settings.data)
    if classes is not None and len(run.classes) != classes:
        return f"it has {len(run.classes)} classes, and {settings.data} has {classes}"
    last, failed = settings.epochs, run.failed_at_epoch
    if len(run.epochs) and run.epochs[-1] > last:
        return f"it has an epoch {run.epochs[-1]}, and its settings {last} epochs"
    if failed is not None and failed > last:
        return f"it failed at epoch {failed}, and its settings have {last} epochs"
    if not run.finished or failed is not None:  # a network with weights that are not finite has no readings
        return None
    if not np.array_equal(run.epochs, np.arange(1, last + 1)):
        return f"it has {len(run.epochs)} epochs instead of {last}"
    if "test_accuracy" not in run.curves or "test_accuracy" not in run.by_class:
        return "it has no test_accuracy"
    for name in _READ_ON_TEST:
        values = run.curves.get(name)
        if values is not None and np.isnan([values[-1], *values[settings.eval_every - 1 :: settings.eval_every]]).any():
            return f"its curve {name} lacks epochs"
    return None


def read_valid(store: Store, settings: Settings) -> Run | None:
    """Return the record of a run, None if there is none; `DamagedRunError` says why one cannot be used."""
    run = store.read(settings.run_id)
    if run is not None and (why := problem(run, settings)):
        raise DamagedRunError(why)
    return run


def get_valid(store: Store, settings: Settings) -> Run | None:
    """Return the record of a run, or None if there is none that can be used."""
    try:
        return read_valid(store, settings)
    except DamagedRunError:
        return None


def is_complete(run: Run | None, require: Sequence[str] = ()) -> bool:
    """Return whether a record is that of a finished run with these readings over time, as far as it can have them."""
    if run is None or not run.finished:
        return False
    possible = [name for name in require if name != "age" or run.settings.get("signal") != "none"]
    return set(possible) <= set(run.over_time)
