"""The metrics of runs: numbers computed from their curves by epoch, such as accuracy on test or of the worst class.

All read them from `METRICS` (parts of a curve) and `MEASURES` (curves). Accuracies are fractions. A run that diverged
counts as chance in every metric: to leave it out would favour the method that causes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from aol.records.record import Floats, Matrix, Run, nan_mean

Metrics: TypeAlias = tuple[list[int], str, dict[str, Floats]]  # places of runs, a curve, its metrics [R]
TAIL = 0.05  # of the epochs
_TOGETHER = 2**22  # readings of runs whose measures are computed at once
METRICS = {  # parts of a curve
    "last": "last epoch",
    "tail_mean": "mean over the last 5 % of epochs",
    "second_half_mean": "mean over the second half of the stream",
    "best": "best epoch, chosen on test: optimistic",
}
CURVES = {"test": "test_accuracy", "validation": "validation_accuracy"}  # by split
# Measures of the test set besides accuracy, with their curves `test_NAME`: the names of `aol.metrics`.
MEASURES = {
    "balanced_accuracy": "mean test accuracy of the classes",
    "macro_f1": "macro-F1 on test",
    "worst_class": "test accuracy of the worst class",
    "worst_tenth": "mean test accuracy of the worst tenth of the classes",
    "head_accuracy": "mean test accuracy of the third of the classes with the most training samples",
    "middle_accuracy": "mean test accuracy of the middle third of the classes by training samples",
    "tail_accuracy": "mean test accuracy of the third of the classes with the fewest training samples",
}
# Measures of a stream, with curves of the same names: a batch is answered before the network is trained on it.
STREAM_MEASURES = {
    "prequential_g_mean": "geometric mean of the classes' accuracies on each batch before training on it",
    "prequential_kappa": "Cohen's kappa on each batch before training on it",
}
ALL_MEASURES = MEASURES | STREAM_MEASURES
# Figures of a study: a measure (None: accuracy), and a part of its curve.
FIGURES: dict[str, tuple[str | None, str]] = {name: (None, name) for name in METRICS} | {
    f"{measure}_{name}": (measure, name) for measure in ALL_MEASURES for name in METRICS
}


def column_of(name: str) -> str:
    """Return the name of a curve of a measure, or the column of a figure in the frame."""
    return name if name.startswith("prequential") else f"test_{name}"


COLUMNS = (*CURVES, *map(column_of, ALL_MEASURES))  # of the frame, with the parts of curves behind them
TABLES = {  # all readings that tables of runs and methods need, which are read in half of the time
    "curves": {*CURVES.values(), *map(column_of, ALL_MEASURES), "threshold"},
    "by_class": {"test_accuracy", "test_precision", "age"},
    "over_time": {"test_accuracy", "test_precision"},
}
RUN_COLUMNS = (
    "folder", "method", "seed", "finished", "failed_at_epoch", "epochs_done", "planned", "seconds", "trained_together",
    "stacking", "aol", "torch", "python", "device", *(f"{curve}_{part}" for curve in COLUMNS for part in METRICS),
    "zero_threshold",
)  # fmt: skip


def measure_text(figure: str) -> str:
    """Return the measure of a figure in a word or two, as the head of a column."""
    return (FIGURES[figure][0] or "accuracy").replace("macro_f1", "macro-F1").replace("_", " ")


def figure_text(figure: str) -> str:
    """Return what a figure is, such as "test accuracy of the worst class, mean over the last 5 % of epochs"."""
    measure, part = FIGURES[figure]
    return f"{ALL_MEASURES[measure] if measure else 'test accuracy'}, {METRICS[part]}"


def is_stream(run: Run) -> bool:
    """Return whether an epoch of this run is a step of a stream."""
    return run.settings.get("scenario") == "stream"


def time_unit(run: Run) -> str:
    """Return what the time of a run is counted in: "epoch", on a stream "step"."""
    return "step" if is_stream(run) else "epoch"


def accuracy_metrics(values: Floats, *, stream: bool) -> dict[str, Floats]:
    """Return the metrics of accuracies by epoch, `[..., E]`, NaN where not measured.

    Computed by torch: these sums have always been its own, and another order of adding changes their last digit.

    >>> {name: float(own) for name, own in accuracy_metrics(np.array([0.5, 0.75, 0.25, 0.5]), stream=True).items()}
    {'last': 0.5, 'tail_mean': 0.5, 'second_half_mean': 0.375, 'best': 0.75}
    """
    import torch

    read = torch.from_numpy(values)
    size = values.shape[-1]
    metrics = {"last": values[..., -1], "tail_mean": read[..., -_tail(size) :].nanmean(-1).numpy()}
    if stream:
        metrics["second_half_mean"] = read[..., size // 2 :].nanmean(-1).numpy()
    return metrics | {"best": np.fmax.reduce(values, axis=-1)}


def at_the_end(values: Floats | Matrix, *, stream: bool) -> Floats:
    """Return the mean over the last 5 % of epochs, on a stream over its second half, of `[E, ...]`; NaNs left out."""
    count = len(values) - len(values) // 2 if stream else _tail(len(values))
    return nan_mean(values[len(values) - count :])


def run_metrics(runs: Sequence[Run]) -> dict[str, Floats]:
    """Return all metrics of some runs by name, as `test_last`; those not on record by readings by class, or NaN."""
    metrics = {f"{curve}_{part}": np.full(len(runs), math.nan) for curve in COLUMNS for part in METRICS}
    for places, name, parts in (*_computed(runs), *_recorded(runs)):  # what is on record comes last, and stays
        for part, values in parts.items():
            metrics[f"{name}_{part}"][places] = values
    return metrics


def zero_threshold_share(run: Run) -> float:
    """Return the share of steps whose threshold was 0, so that no class grew older; NaN where it is not recorded."""
    values = run.curves.get("threshold", np.zeros(0))
    values = values[~np.isnan(values)]
    return float((values == 0).mean()) if len(values) else math.nan


def _recorded(runs: Sequence[Run]) -> Iterator[Metrics]:
    """Yield the metrics of curves that are on record."""
    alike: dict[tuple[str, int, bool], list[int]] = {}
    curves = [_curves(run) if run.failed_at_epoch is None else _curves_of_chance(run) for run in runs]
    for place, run in enumerate(runs):
        for name, values in curves[place].items():
            alike.setdefault((name, len(values), is_stream(run)), []).append(place)
    for (name, _, stream), places in alike.items():  # of many runs at once, which is faster
        yield places, name, accuracy_metrics(np.stack([curves[place][name] for place in places]), stream=stream)


def _curves(run: Run) -> dict[str, Floats]:
    names = {curve: CURVES.get(curve, curve) for curve in COLUMNS}
    return {curve: run.curves[name] for curve, name in names.items() if len(run.curves.get(name, ()))}


def _computed(runs: Sequence[Run]) -> Iterator[Metrics]:
    """Yield the metrics that follow from readings by class, of runs without them on record."""
    from aol.metrics import class_metrics

    readings = [_readings(run) for run in runs]
    alike: dict[tuple[Any, ...], list[int]] = {}
    for place, (run, own) in enumerate(zip(runs, readings, strict=True)):
        if own:
            shapes = [(name, values.shape) for name, values in own.items()]
            by_epoch = "test_accuracy" in run.over_time
            alike.setdefault((_uneven(tuple(run.counts or ())), is_stream(run), by_epoch, *shapes), []).append(place)
    for (counts, stream, by_epoch, *_), every in alike.items():
        names = readings[every[0]]
        most = max(1, _TOGETHER // names["test_accuracy"].size)
        for places in (every[start : start + most] for start in range(0, len(every), most)):
            accuracy, *precision = (np.array([readings[place][name] for place in places], np.float64) for name in names)
            measures = class_metrics(accuracy, precision=precision[0] if precision else None, counts=counts)
            for name, values in measures.items():
                parts = accuracy_metrics(values.numpy(), stream=stream)
                yield places, column_of(name), parts if by_epoch else {"last": parts["last"]}


def _readings(run: Run) -> dict[str, Floats | Matrix]:
    """Return accuracy and precision by class, `[E, C]`, of a run that lacks measures; nothing of the others."""
    known = {name for name in ALL_MEASURES if column_of(name) in run.curves}
    by_class: dict[str, Floats | Matrix] = {}
    if run.failed_at_epoch is None and "test_accuracy" in run.over_time:
        lacks_parts = _uneven(tuple(run.counts or ())) and "head_accuracy" not in known  # of a stream known at its end
        by_class |= run.over_time if lacks_parts or "balanced_accuracy" not in known else {}
    elif run.failed_at_epoch is None and not known:
        by_class |= {name: values[None] for name, values in run.by_class.items()}
    if not len(by_class.get("test_accuracy", ())):
        return {}
    return {name: by_class[name] for name in ("test_accuracy", "test_precision") if name in by_class}


@lru_cache(maxsize=256)
def _uneven(counts: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the sizes of classes that have a head and a tail, else None."""
    from aol.metrics import has_tail

    return counts if counts and has_tail(counts) else None


def _curves_of_chance(run: Run) -> dict[str, Floats]:
    """Return the measures of a network that always gives the same answer, mean over which it is, `[1]`."""
    size, level = len(run.classes), 1.0 / len(run.classes)
    measures = dict.fromkeys((*CURVES, "test_balanced_accuracy"), level) | {"test_macro_f1": 2 * level / (size + 1)}
    measures |= dict.fromkeys(("test_worst_class", "test_worst_tenth"), float(size == 1))
    if _uneven(tuple(run.counts or ())):
        measures |= dict.fromkeys(("test_head_accuracy", "test_middle_accuracy", "test_tail_accuracy"), level)
    if is_stream(run):
        measures |= dict.fromkeys(STREAM_MEASURES, 0.0)
    return {name: np.full(1, value) for name, value in measures.items()}


def _tail(epochs: int) -> int:
    return max(1, round(TAIL * epochs))
