"""A study cut down to seconds on a CPU: the same methods on `digits`, at the ends of its axes, for a few epochs.

It shows that a study works from end to end, and nothing about its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from aol.engine.settings import Value
from aol.study.spec import Method, Study

_EPOCHS = 3
_SEEDS = 2
_LARGEST = 50.0  # imbalance, of some 140 images a class
# What must be different on 1,347 images of 8 x 8 pixels.
_INSTEAD: Mapping[str, Callable[[Value], Value]] = {
    "data": lambda _: "digits",
    "imbalance": lambda value: min(value, _LARGEST) if isinstance(value, int | float) else value,
    "memory": lambda value: "reservoir:300" if str(value).startswith("reservoir") else value,
    "fraction": lambda value: max(value, 0.1) if isinstance(value, int | float) else value,
    "period": lambda value: min(value, 2) if isinstance(value, int) else value,
}
_SMALL: Mapping[str, Value] = {
    "net": "auto", "epochs": _EPOCHS, "batch_size": 64, "warmup": 1, "precision": "fp32", "image_size": None,
}  # fmt: skip


def smoke(study: Study) -> Study:
    """Return the small variant of a study.

    >>> from aol.study.spec import load
    >>> small = smoke(load("period-10-seeds"))
    >>> small.cells_list(), small.seeds, len(small.all_runs())
    ([{'data': 'digits', 'imbalance': 50.0}, {'data': 'digits', 'imbalance': 10}], (42, 1024), 32)
    """
    common = {name: _instead(name, value) for name, value in {"data": "digits", **study.common}.items()}
    common = {name: value for name, value in {**common, **_SMALL}.items() if name not in study.cells}
    if study.common.get("schedule") == "fixed":
        common["warmup"] = 0
    more = [seed for seed in range(1, _SEEDS + 1) if seed not in study.seeds]
    return replace(
        study,
        name=f"{study.name}-smoke",
        title=f"{study.name} in seconds, on digits",
        common=common,
        cells={name: _ends(name, values) for name, values in study.cells.items()},
        seeds=(*study.seeds, *more)[:_SEEDS],
        methods=tuple(_cut(method) for method in study.methods),
        tries_seeds=None if study.tries_seeds is None else min(study.tries_seeds, _SEEDS),
        paper=None,
    )


def _instead(name: str, value: Value) -> Value:
    return _INSTEAD[name](value) if name in _INSTEAD else value


def _ends(name: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the first and the last of the values that are different on digits."""
    different = list(dict.fromkeys(_instead(name, value) for value in values))
    return tuple(dict.fromkeys((different[0], different[-1])))


def _cut(method: Method) -> Method:
    return replace(
        method,
        fixed={name: _instead(name, value) for name, value in method.fixed.items()},
        grid={name: tuple(dict.fromkeys((values[0], values[-1]))) for name, values in method.grid.items()},
    )
