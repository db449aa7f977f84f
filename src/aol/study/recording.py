"""From a loop that is over to the records of its runs."""

from __future__ import annotations

import torch
from torch import Tensor

from aol.engine.loop import Loop
from aol.engine.results import versions
from aol.engine.settings import Settings
from aol.study.records import BY_CLASS, CURVES, Numbers, Record, rounded


def records_of(loop: Loop, keep: tuple[str, ...] = ()) -> list[Record]:
    """Return the record of every run of a loop that is over, in its order; `keep` as in `Study`."""
    hardware = versions(loop.device)
    seconds = float(loop.history.epoch("seconds")[:, 0].sum()) / len(loop.runs)
    found = []
    for row, run in enumerate(loop.runs):
        ages = true_age(loop.history.by_class("smoothed_age")[:, row], run)
        by_class = {name: loop.history.by_class(name)[-1, row] for name in BY_CLASS if name != "mean_age"}
        by_class["age"] = loop.history.by_class("smoothed_age")[-1, row]
        if ages is not None:
            by_class["mean_age"] = ages.nanmean(0)
        found.append(
            Record(
                settings=run,
                curves=_known({name: _curve(loop.history.epoch(name)[:, row], run.epochs) for name in CURVES}),
                by_class=_known({name: rounded(values.tolist()) for name, values in by_class.items()}),
                versions=hardware,
                seconds=float(f"{seconds:.4g}"),
                trained_together=len(loop.runs),
                failed_at_epoch=loop.failed[row] or None,
                over_time={name: [rounded(age, 4) for age in ages.tolist()] for name in keep if ages is not None},
            )
        )
    return found


def can_keep_ages(run: Settings) -> bool:
    """Return whether ages can be told from what the engine writes down: see `true_age`."""
    return run.scenario != "arrival" and run.rho != 0.0


def true_age(smoothed: Tensor, run: Settings) -> Tensor | None:
    """Return the mean age of each class by epoch `[E, C]`, unsmoothed, from what the engine wrote down, smoothed.

    Both are linear, so that smoothing can be undone after the mean over a class is taken:
    `a_e = (s_e - (1 - rho) s_(e-1)) / rho`, and `a_e = e s_e - (e - 1) s_(e-1)` where the mean of all ages is kept. Not
    so where rho is zero, or where samples join a class on the way; then None.

    >>> true_age(torch.tensor([[1.0], [1.5], [2.25]]), Settings())
    tensor([[1.],
            [2.],
            [3.]], dtype=torch.float64)
    """
    if not can_keep_ages(run):
        return None
    now = smoothed.to(torch.float64)
    before = torch.cat((now[:1], now[:-1]))
    if run.fuse == "mean" and run.scenario == "offline":
        epoch = torch.arange(1, len(now) + 1, dtype=torch.float64)[:, None]
        return epoch * now - (epoch - 1) * before
    return (now - (1 - run.rho) * before) / run.rho


def _curve(values: Tensor, epochs: int) -> Numbers:
    """Return one number an epoch; None for those that were not reached because all runs had failed."""
    return rounded(values.tolist()) + [None] * (epochs - values.numel())


def _known(readings: dict[str, Numbers]) -> dict[str, Numbers]:
    """Return the readings that were taken at all."""
    return {name: values for name, values in readings.items() if any(value is not None for value in values)}
