"""What a record says, held against what a run of its settings can have written.

Assumes plain values as JSON has them, numbers finite. A checksum tells that a file is as its writer left it, and
not who wrote it: what does not fit the settings would be used silently, or stop a table halfway.
"""

from __future__ import annotations

from collections.abc import Mapping

from aol._check import shown
from aol.data.named import NUM_CLASSES
from aol.engine.settings import Settings

_NUMBERS = {float, type(None)}  # all that is ever written; not int, and so neither true nor false
_READ_ON_TEST = ("test_accuracy", "validation_accuracy", "averaged_accuracy")  # at the same epochs, all or none


def fault(content: Mapping[str, object], run: Settings) -> str | None:
    """Return what is wrong with the content of a run's record; None if a run can have written it."""
    found = _of_the_run(content, run.epochs)
    if found is not None:
        return found
    failed = content.get("failed_at_epoch")
    assert failed is None or isinstance(failed, int)
    return (
        _of_curves(content.get("curves"), run, failed)
        or _of_classes(content.get("by_class"), run, failed)
        or _over_time(content.get("over_time", {}), _classes(content.get("by_class"), run), run, failed)
    )


def _of_the_run(content: Mapping[str, object], epochs: int) -> str | None:
    versions, seconds = content.get("versions"), content.get("seconds")
    together, failed = content.get("trained_together"), content.get("failed_at_epoch")
    texts = versions.values() if isinstance(versions, dict) else [None]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        return f"its versions are not texts by name but {shown(versions)}"
    if type(seconds) is not float or seconds < 0:
        return f"its seconds are not a number of 0 or more but {shown(seconds)}"
    if type(together) is not int or together < 1:
        return f"its trained_together is not a whole number of 1 or more but {shown(together)}"
    if failed is not None and (type(failed) is not int or not 1 <= failed <= epochs):
        return f"its failed_at_epoch is not one of its {epochs} epochs but {shown(failed)}"
    return None


def _of_curves(curves: object, run: Settings, failed: int | None) -> str | None:
    """One number an epoch, whatever became of the run; those on test at least where they had to be read."""
    if not isinstance(curves, dict):
        return f"its curves are not lists by name but {shown(curves)}"
    for name, values in curves.items():
        if found := _of_numbers(f"its curve {name}", name, values):
            return found
        if len(values) != run.epochs:
            return f"its curve {name} has {len(values)} numbers and its run {run.epochs} epochs"
    if failed is not None:  # what a network without finite weights answers may be anything, or nothing
        return None
    if "test_accuracy" not in curves:
        return "it has no test_accuracy by epoch, and its run did not fail"
    for name in _READ_ON_TEST:
        values = curves.get(name)
        if values is not None and (values[-1] is None or None in values[run.eval_every - 1 :: run.eval_every]):
            return f"its curve {name} lacks epochs that were to be read, and its run did not fail"
    return None


def _of_classes(by_class: object, run: Settings, failed: int | None) -> str | None:
    """One number a class in every reading, and as many classes as the data have where that is known."""
    if not isinstance(by_class, dict):
        return f"its by_class is not lists by name but {shown(by_class)}"
    if failed is None and "test_accuracy" not in by_class:
        return "it has no test_accuracy by class, and its run did not fail"
    for name, values in by_class.items():
        if found := _of_numbers(f"its {name} by class", name, values):
            return found
    classes = _classes(by_class, run)
    for name, values in by_class.items():
        if len(values) != classes or not values:
            return f"its {name} by class has {len(values)} numbers, and there are {classes} classes"
    return None


def _over_time(over_time: object, classes: int | None, run: Settings, failed: int | None) -> str | None:
    """One row an epoch; a stack in which all runs failed ends early, and not before the epoch at which this one did."""
    if not isinstance(over_time, dict) or not all(isinstance(rows, list) for rows in over_time.values()):
        return f"its over_time is not lists by name but {shown(over_time)}"
    for name, rows in over_time.items():
        if not (failed or run.epochs) <= len(rows) <= run.epochs:
            return f"its {name} over time has {len(rows)} rows and its run {run.epochs} epochs"
        for row in rows:
            if found := _of_numbers(f"its {name} over time", name, row):
                return found
            if len(row) != (len(rows[0]) if classes is None else classes) or not row:
                return f"its {name} over time has rows of {len(row)} numbers, and not one a class"
    return None


def _classes(by_class: object, run: Settings) -> int | None:
    """Return how many classes there are; for data of a folder, as many as the first reading has."""
    own = (
        [len(values) for values in by_class.values() if isinstance(values, list)] if isinstance(by_class, dict) else []
    )
    return NUM_CLASSES.get(run.data, own[0] if own else None)


def _of_numbers(called: str, name: str, values: object) -> str | None:
    if not isinstance(values, list) or not _NUMBERS.issuperset(map(type, values)):
        return f"{called} is not a list of numbers but {shown(values)}"
    if name.endswith("accuracy"):
        known = [value for value in values if value is not None]
        if known and not 0.0 <= min(known) <= max(known) <= 1.0:
            return f"{called} goes from {min(known):g} to {max(known):g}, and accuracies from 0 to 1"
    return None
