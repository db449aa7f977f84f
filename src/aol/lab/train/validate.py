"""Whether a record is that of a run with its settings: another one would enter a table silently, or break it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aol.lab.settings import Settings, WrongSettingsError
from aol.records.record import DamagedRunError, Run
from aol.records.store import Store


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
