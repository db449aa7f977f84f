"""The metrics of one run: numbers computed from its curves by epoch, such as accuracy on test or of the worst class.

To add one, add a line to `METRICS` (another part of a curve) or to `MEASURES` (another curve): the frame, JSON, `aol
study show --figure` and the page read it from there. Accuracies are fractions. A run that diverged counts as chance in
every metric: leaving such runs out would favour the method that causes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from aol.records.record import Floats, Matrix, Run, nan_mean

Measures: TypeAlias = dict[str, Floats]  # of one run, by epoch
TAIL = 0.05  # of the epochs
_READ: Sequence[str] = ("test_accuracy", "test_precision")  # by class: what measures are computed from
_TOGETHER = 2**22  # readings of runs whose measures are computed at once
METRICS = {  # parts of a curve
    "last": "last epoch",
    "tail_mean": "mean over the last 5 % of epochs",
    "second_half_mean": "mean over the second half of the stream",
    "best": "best epoch, chosen on test: optimistic",
}
# By the name of a split: the curve its metrics are computed from.
CURVES = {"test": "test_accuracy", "validation": "validation_accuracy"}
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
# Measures of a stream, with curves of the same names: each batch is answered before the network is trained on it.
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


def measure_text(figure: str) -> str:
    """Return the measure of a figure in a word or two, as the head of a column.

    >>> measure_text("tail_mean"), measure_text("macro_f1_last")
    ('accuracy', 'macro-F1')
    """
    return (FIGURES[figure][0] or "accuracy").replace("macro_f1", "macro-F1").replace("_", " ")


def figure_text(figure: str) -> str:
    """Return what a figure is.

    >>> figure_text("worst_class_tail_mean")
    'test accuracy of the worst class, mean over the last 5 % of epochs'
    """
    measure, part = FIGURES[figure]
    return f"{ALL_MEASURES[measure] if measure else 'test accuracy'}, {METRICS[part]}"


def is_stream(run: Run) -> bool:
    """Return whether an epoch of this run is a step of a stream."""
    return run.settings.get("scenario") == "stream"


def time_unit(run: Run) -> str:
    """Return what the time of a run is counted in: "epoch", on a stream "step"."""
    return "step" if is_stream(run) else "epoch"


def accuracy_metrics(values: Floats, *, stream: bool) -> dict[str, float]:
    """Return the metrics of one run from its accuracies by epoch `[E]`, NaN where not measured.

    Computed by torch: these sums have always been its own, and another order of adding changes their last digit.

    >>> accuracy_metrics(np.array([0.5, 0.75, 0.25, 0.5]), stream=True)
    {'last': 0.5, 'tail_mean': 0.5, 'second_half_mean': 0.375, 'best': 0.75}
    """
    import torch

    read = torch.from_numpy(np.asarray(values, dtype=np.float64))
    if not len(read):
        return {}
    known = read[~read.isnan()]
    metrics = {"last": read[-1], "tail_mean": read[-_tail(len(read)) :].nanmean()}
    if stream:
        metrics["second_half_mean"] = read[len(read) // 2 :].nanmean()
    metrics["best"] = known.max() if len(known) else read[-1]
    return {name: float(value) for name, value in metrics.items()}


def at_the_end(values: Floats | Matrix, *, stream: bool) -> Floats:
    """Return the mean over the last 5 % of epochs, on a stream over its second half, of `[E, ...]`; NaNs left out.

    >>> float(at_the_end(np.arange(40.0), stream=False))
    38.5
    """
    count = len(values) - len(values) // 2 if stream else _tail(len(values))
    return nan_mean(values[len(values) - count :])


def run_metrics(run: Run, computed: Measures | None = None) -> dict[str, float]:
    """Return all metrics of a run by name, `test_last`, `validation_tail_mean` and so on; NaN where not measured."""
    curves = {split: accuracy_metrics(counted(run, curve), stream=is_stream(run)) for split, curve in CURVES.items()}
    measured = class_measures(run, computed)
    curves |= {column_of(measure): measured.get(measure, {}) for measure in ALL_MEASURES}
    return {f"{curve}_{name}": own.get(name, math.nan) for curve, own in curves.items() for name in METRICS}


def columns_of(run: Run, computed: Measures | None = None) -> dict[str, object]:
    """Return the columns of a run in the table of runs, without its folder and its settings, by name."""
    names = ("method", "seed", "finished", "failed_at_epoch", "planned", "seconds", "trained_together", "stacking")
    columns = {name: getattr(run, name) for name in names[:4]} | {"epochs_done": len(run.epochs)}
    columns |= {name: getattr(run, name) for name in names[4:]}
    columns |= {name: run.versions.get(name) for name in ("aol", "torch", "python", "device")}
    return columns | run_metrics(run, computed) | {"zero_threshold": zero_threshold_share(run)}


def counted(run: Run, curve: str) -> Floats:
    """Return a run's accuracies by epoch as its metrics count them; of a run that diverged, that of chance, once."""
    return run.curves.get(curve, np.zeros(0)) if run.failed_at_epoch is None else np.full(1, chance(run))


def zero_threshold_share(run: Run) -> float:
    """Return the share of steps whose threshold was 0, so that no class grew older; NaN where it is not recorded."""
    values = run.curves.get("threshold", np.zeros(0))
    values = values[~np.isnan(values)]
    return float((values == 0).mean()) if len(values) else math.nan


def class_measures(run: Run, computed: Measures | None = None) -> dict[str, dict[str, float]]:
    """Return the metrics of those `ALL_MEASURES` that are on record, by name; `last` alone where only that epoch is.

    `computed` are those of the run by `computed_measures`, where many runs are read.
    """
    counts = _uneven(tuple(run.counts or ()))
    if run.failed_at_epoch is not None:
        curves = _measures_of_chance(run, counts is not None)
    else:
        curves = _recorded(run)
        if _lacks(run):
            curves = (computed or _computed(run.over_time, counts)) | curves
    if not curves and "test_accuracy" in run.by_class:
        last = _computed({name: values[None] for name, values in run.by_class.items()}, counts)
        return {name: {"last": float(values[-1])} for name, values in last.items()}
    return {name: accuracy_metrics(values, stream=is_stream(run)) for name, values in curves.items()}


def computed_measures(runs: Sequence[Run]) -> list[Measures]:
    """Return the measures that follow from readings by class, of runs whose record lacks some: of many at once."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, run in enumerate(runs):
        if run.failed_at_epoch is None and _lacks(run):
            shape = run.over_time["test_accuracy"].shape
            alike = (shape, "test_precision" in run.over_time, tuple(run.counts or ()))
            group = groups.setdefault(alike, [])
            if len(group) * shape[0] * shape[1] > _TOGETHER:  # begins another
                groups[(*alike, place)] = groups.pop(alike)
                group = groups.setdefault(alike, [])
            group.append(place)
    measures: list[Measures] = [{} for _ in runs]
    for places in groups.values():
        first = runs[places[0]]
        names = [name for name in _READ if name in first.over_time]
        stacked: dict[str, Matrix] = {
            name: np.stack([runs[place].over_time[name] for place in places]) for name in names
        }
        for name, values in _computed(stacked, _uneven(tuple(first.counts or ()))).items():
            for place, own in zip(places, values, strict=True):
                measures[place][name] = own
    return measures


def _recorded(run: Run) -> Measures:
    return {name: run.curves[column_of(name)] for name in ALL_MEASURES if column_of(name) in run.curves}


def _lacks(run: Run) -> bool:
    """Return whether measures that follow from readings by class are not on record."""
    uneven = _uneven(tuple(run.counts or ())) is not None
    wanted = {"test_balanced_accuracy"} | ({"test_head_accuracy"} if uneven else set())  # of streams known at the end
    return "test_accuracy" in run.over_time and not wanted <= run.curves.keys()


@lru_cache(maxsize=256)
def _uneven(counts: tuple[int, ...]) -> list[int] | None:
    """Return the sizes of classes that have a head and a tail, else None."""
    from aol.metrics import has_tail

    return [*counts] if counts and has_tail(counts) else None


def _computed(by_class: Mapping[str, Floats | Matrix], counts: list[int] | None) -> dict[str, Floats]:
    """Return the measures from readings by epoch and class `[E, C]`."""
    from aol.metrics import class_metrics

    measures = class_metrics(by_class["test_accuracy"], precision=by_class.get("test_precision"), counts=counts)
    return {name: values.numpy() for name, values in measures.items()}


def _measures_of_chance(run: Run, has_parts: bool) -> dict[str, Floats]:
    """Return the measures of a network that always gives the same answer, mean over which it is, `[1]` each."""
    size, level = len(run.classes), chance(run)
    measures = {"balanced_accuracy": level, "macro_f1": 2 * level / (size + 1)}
    measures |= dict.fromkeys(("worst_class", "worst_tenth"), 1.0 if size == 1 else 0.0)
    if has_parts:
        measures |= dict.fromkeys(("head_accuracy", "middle_accuracy", "tail_accuracy"), level)
    if is_stream(run):
        measures |= dict.fromkeys(STREAM_MEASURES, 0.0)
    return {name: np.full(1, value) for name, value in measures.items()}


def chance(run: Run) -> float:
    """Return the accuracy of guessing."""
    return 1.0 / len(run.classes)


def _tail(epochs: int) -> int:
    return max(1, round(TAIL * epochs))
