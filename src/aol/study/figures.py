"""The figures of one run, from the curves of its record: which part of training an accuracy is taken over.

Accuracies are fractions. A network that diverged answers at chance, in every figure: leaving such runs out would favour
the method that makes them.
"""

from __future__ import annotations

import math

import torch

from aol.engine.results import accuracies
from aol.study.records import Record

Reading = dict[int, float]  # by epoch, counted from one
AGES, ACCURACY, GAIN, SHIFTS = "ages", "accuracy", "gain", "shifts"  # what can be drawn over time
PLAIN = ("last", "tail_mean", "second_half_mean", "best")
AVERAGED = tuple(f"averaged_{name}" for name in PLAIN)
# What a figure is, in a few words; `best` is chosen on test, and says so.
MEANING = {
    "last": "test accuracy of the last epoch",
    "tail_mean": "test accuracy, mean over the last 5 % of epochs",
    "second_half_mean": "test accuracy, mean over the second half of the stream",
    "best": "test accuracy of the best epoch, chosen on test: optimistic",
}


def meaning(figure: str) -> str:
    """Return what a figure is, in words.

    >>> meaning("averaged_last")
    'test accuracy of the last epoch, of the averaged network'
    """
    plain = figure.removeprefix("averaged_")
    return MEANING[plain] + (", of the averaged network" if plain != figure else "")


def on_test(record: Record, figure: str) -> float | None:
    """Return a figure of a run on test; None where it was not read, or where this kind of run has no such figure."""
    plain = figure.removeprefix("averaged_")
    return _figure(record, plain, "averaged_accuracy" if plain != figure else "test_accuracy")


def on_validation(record: Record, figure: str) -> float | None:
    """Return the same figure on what was held out for choosing; None where nothing was."""
    return _figure(record, figure.removeprefix("averaged_"), "validation_accuracy")


def by_epoch(record: Record) -> Reading:
    """Return a run's test accuracy by epoch; from where it diverged on it is that of chance, as in the figures."""
    read = enumerate(record.curves.get("test_accuracy", []), 1)
    found = {epoch: value for epoch, value in read if value is not None}
    if record.failed_at_epoch is not None:
        found |= dict.fromkeys(range(record.failed_at_epoch, record.settings.epochs + 1), _chance(record))
    return found


def _figure(record: Record, figure: str, curve: str) -> float | None:
    stream = record.settings.scenario == "stream"
    if record.failed_at_epoch is not None:  # before the curve: one that failed at once has none
        return _chance(record) if figure != "second_half_mean" or stream else None
    values = record.curves.get(curve)
    if not values:
        return None
    read = torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
    return accuracies(read, stream=stream).get(figure)


def _chance(record: Record) -> float:
    classes = max((len(values) for values in record.by_class.values()), default=0)
    return 1.0 / classes if classes else 0.0
