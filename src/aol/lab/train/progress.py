"""How training progresses, for people: one protocol for `aol train`, `aol stream`, studies and Ray.

`Silent` prints nothing, `Lines` a line now and then for logs, `Live` a bar and a table on a terminal.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aol._values import printable
from aol.lab.engine.loop import Loop
from aol.lab.engine.samples import pool
from aol.lab.engine.source import AnyPair
from aol.lab.settings import Settings, memory_capacity
from aol.longtail import long_tail_counts

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

_MOST_ROWS = 24  # of the table that is shown while runs train
_MOST_SINGLE = 8  # runs shown one by one; more are shown by method
# Settings that say how many images an epoch has.
_SIZES = (
    "scenario", "data", "imbalance", "validation", "samples", "fraction", "stream", "memory",
)  # fmt: skip


@dataclass(frozen=True)
class Status:
    """How far a list of runs is: complete and all runs, the share of all epochs, and the seconds left, if known."""

    done: int
    total: int
    share: float
    seconds_left: float | None


class Silent:
    """The protocol, and an observer that prints nothing."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Take a sentence."""

    def say_once(self, text: str) -> None:
        """Take a sentence that may come again."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def update(self, status: Status, doing: str, loop: Loop | None = None) -> None:
        """Take the status, what is going on in a few words, and the loop that is trained here, if any."""

    def close(self) -> None:
        """Take the end."""


class Lines(Silent):
    """A line now and then, on standard error."""

    def __init__(self, every: float = 10.0) -> None:
        super().__init__()
        self._every, self._last = every, -every

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(printable(text), file=sys.stderr, flush=True)

    def update(self, status: Status, doing: str, loop: Loop | None = None) -> None:
        """Print the status, if the last line was a while ago."""
        if time.monotonic() - self._last < self._every and not (loop and loop.done):
            return
        self._last = time.monotonic()
        left = "" if status.seconds_left is None else f", about {duration(status.seconds_left)} left"
        text = f"{status.done}/{status.total} runs complete, {100 * status.share:.0f} % of all epochs{left}. {doing}"
        self.say(text + (_accuracy_range(loop) if loop else ""))


class Live(Silent):
    """A progress bar with the time left and a table of the runs that are trained now, redrawn in place."""

    def __init__(self, console: Console, name: str = "") -> None:
        from rich.live import Live as RichLive
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__()
        self._name = f"{printable(name)}: " if name else ""
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TextColumn("{task.fields[times]}"),
            console=console,
        )
        self._start = time.monotonic()
        self._task = self._bar.add_task(f"{self._name}starting", total=1.0, times="")
        self._left: tuple[float, float] | None = None  # the seconds left, and when they were
        self._runs: dict[str, _RunRow] = {}  # those that can be compared with the runs in training, by id
        self._group: object = None
        self._table: list[Table] = []
        self._doing = ""
        self._live = RichLive(console=console, refresh_per_second=4, get_renderable=self._picture)
        self._live.start()

    def say(self, text: str) -> None:
        """Print a sentence above the table."""
        self._live.console.print(text, markup=False, highlight=False)

    def update(self, status: Status, doing: str, loop: Loop | None = None) -> None:
        """Move the bar and redraw the table."""
        self._left = None if status.seconds_left is None else (status.seconds_left, time.monotonic())
        self._bar.update(
            self._task, description=f"{self._name}{status.done}/{status.total} runs", completed=status.share
        )
        self._doing = doing
        if loop is not None and len(loop.history):
            if self._group != loop.settings.group_key:
                self._group, self._runs = loop.settings.group_key, {}
            self._runs |= {run.run_id: _row(loop, row) for row, run in enumerate(loop.runs)}
            self._table = [_table(list(self._runs.values()), loop.classes, by_method=status.total > _MOST_SINGLE)]
        self._live.refresh()

    def _picture(self) -> Group:
        """Return what is on the screen; times go on between two updates."""
        from rich.console import Group
        from rich.text import Text

        now = time.monotonic()
        times = f"{duration(now - self._start)} elapsed"
        if self._left is not None:
            times += f", about {duration(self._left[0] - (now - self._left[1]))} left"
        self._bar.update(self._task, times=times)
        return Group(self._bar, Text(printable(self._doing), style="dim"), *self._table)

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()


@dataclass(frozen=True)
class _RunRow:
    """The last readings of a run: `age` is that of its classes, `[C]`."""

    method: str
    seed: int
    epoch: int
    failed: int
    loss: float
    train: float
    test: float
    age: Tensor


def _row(loop: Loop, row: int) -> _RunRow:
    run, history = loop.runs[row], loop.history
    loss, train, test = (float(history.last(name)[row]) for name in ("train_loss", "train_accuracy", "test_accuracy"))
    age = history.last("age", by_class=True)[row]
    return _RunRow(run.method, run.seed, loop.epoch, loop.failed[row], loss, train, test, age)


def _table(runs: Sequence[_RunRow], classes: Sequence[str], *, by_method: bool) -> Table:
    """Return runs as a table, one by one or a row for each method: mean and standard deviation over seeds.

    Of a method, the runs that are furthest are shown: a mean over runs at different epochs says nothing.
    """
    from rich.table import Table

    by_method = by_method and len({run.method for run in runs}) < len(runs)
    groups: dict[object, list[_RunRow]] = {}
    for run in runs:
        groups.setdefault(run.method if by_method else (run.method, run.seed), []).append(run)
    spread = " ± sd" if by_method else ""
    head = ("seeds" if by_method else "seed", "epoch", "loss", f"train %{spread}", f"test %{spread}", "oldest class")
    table = Table("method", *head, box=None, pad_edge=False)
    for some in list(groups.values())[:_MOST_ROWS]:
        epoch = max(run.epoch for run in some)
        last = [run for run in some if run.epoch == epoch]
        seeds = f"{len(last)} of {len(some)}" if len(last) < len(some) else str(len(some))
        table.add_row(some[0].method, seeds if by_method else str(some[0].seed), str(epoch), *_cells(last, classes))
    if len(groups) > _MOST_ROWS:
        table.add_row(f"and {len(groups) - _MOST_ROWS} more")
    return table


def _cells(runs: Sequence[_RunRow], classes: Sequence[str]) -> tuple[str, str, str, str]:
    """Return loss, accuracies and the oldest class of some runs, for their row of the table."""
    failed = [run.failed for run in runs if run.failed]
    losses = torch.tensor([run.loss for run in runs if not run.failed])
    state = f"{float(losses.mean()):.3f}" if losses.numel() else f"failed at epoch {min(failed)}"
    if losses.numel() and failed:
        state += f", {len(failed)} failed"
    age = torch.stack([run.age for run in runs]).nanmean(0)
    oldest = int(age.nan_to_num(0.0).argmax())
    named = "" if bool(age.isnan().all()) else f"{classes[oldest]} ({float(age[oldest]):.1f})"
    return state, _percent([run.train for run in runs]), _percent([run.test for run in runs]), named


def _percent(values: Sequence[float]) -> str:
    """Return the mean of accuracies in per cent, and the standard deviation of several.

    >>> _percent([0.5, 0.6, float("nan")]), _percent([0.5])
    ('55.0 ± 7.1', '50.0')
    """
    known = [100 * value for value in values if value == value]
    if not known:
        return ""
    return f"{statistics.fmean(known):.1f}" + (f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else "")


def _accuracy_range(loop: Loop) -> str:
    if not len(loop.history):
        return ""
    accuracy = loop.history.last("test_accuracy")
    known = accuracy[~accuracy.isnan()]
    if not known.numel():
        return ""
    low, high = (f"{100 * float(value):.1f}" for value in (known.min(), known.max()))
    return f", test {low} %" if low == high else f", test {low} to {high} %"


def describe(loop: Loop, within: float | None = None) -> str:
    """Return what a loop does, in a few words; `within` is the share of an epoch that is not over."""
    run = loop.settings
    what = f"{run.data}, imbalance {run.imbalance:g}" if run.imbalance is not None else run.data
    many = f"Training {len(loop.runs)} runs as one network" if len(loop.runs) > 1 else "Training one run"
    at = (
        f"{loop.epoch}/{run.epochs}" if within is None else f"{loop.epoch + 1}/{run.epochs}, {100 * within:.0f} % of it"
    )
    speed = f", {float(loop.history.last('images_per_second')[0]):,.0f} images/s" if len(loop.history) else ""
    return f"{many} ({what}): epoch {at}{speed}{_waiting(loop)}"


def _waiting(loop: Loop) -> str:
    """Return how much of the last training pass was waiting for large images, where that is worth a word."""
    if not len(loop.history):
        return ""
    waited, took = (float(loop.history.last(name)[0]) for name in ("data_seconds", "train_seconds"))
    return f" ({100 * waited / took:.0f} % of the training time waiting for images)" if waited > 0.1 * took else ""


def imbalance_note(loop: Loop) -> str | None:
    """Return a sentence where the smallest class of a long tail should have less than one sample; else None."""
    run, counts = loop.settings, loop.counts.cpu()
    if run.imbalance is None:
        return None
    if run.scenario == "stream" and run.stream == "shifting":
        counts = long_tail_counts(int(counts.min()), loop.num_classes, run.imbalance)
    largest, smallest = int(counts.max()), int(counts.min())
    if largest >= run.imbalance:
        return None
    return (
        f"Imbalance {run.imbalance:g} is not possible with {run.data}: it became {largest / smallest:g}, because the "
        f"largest class has {largest:,} samples and the smallest {smallest:,}."
    )


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(5000), duration(95)
    ('1 h 23 min', '2 min')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Tally:
    """Counts epochs and work, and estimates the time that is left from the speed of this process.

    Of all `runs`, those that are `left` are not complete at the start; `pairs` has their data sets.
    """

    def __init__(self, runs: Sequence[Settings], left: Sequence[Settings], pairs: dict[str, AnyPair]) -> None:
        self._cost = costs(left, pairs)
        self._epochs = {run.run_id: run.epochs for run in runs}
        self._past: dict[str, float] = {**self._epochs, **dict.fromkeys(self._cost, 0)}  # epochs that are over
        self._over = set(self._epochs) - set(self._cost)
        self._start: float | None = None
        self._worked = 0.0

    def begin(self, runs: Iterable[Settings], epoch: int) -> None:
        """Note that runs begin here, or continue after an epoch."""
        self._start = self._start or time.monotonic()
        self._past |= {run.run_id: epoch for run in runs if run.run_id in self._cost}

    def epoch(self, runs: Iterable[Settings], epoch: float) -> None:
        """Note how many epochs of runs are over; a part of an epoch counts."""
        for run in runs:
            if run.run_id in self._cost:
                self._worked += self._cost[run.run_id] * (epoch - self._past[run.run_id]) / run.epochs
                self._past[run.run_id] = epoch

    def batch(self, runs: Sequence[Settings], epoch: int, work: float) -> float:
        """Note how much work, of `costs`, was done after an epoch; return the share of the next one."""
        shares = [min(1.0, work * run.epochs / self._cost[run.run_id]) for run in runs if run.run_id in self._cost]
        share = max(shares, default=0.0)
        self.epoch(runs, epoch + share)
        return share

    def finish(self, runs: Iterable[Settings]) -> None:
        """Note that runs are complete."""
        known = {run.run_id: run.epochs for run in runs if run.run_id in self._epochs}
        self._past |= known
        self._over |= known.keys()

    def status(self) -> Status:
        """Return how far the runs are."""
        left = sum(cost * (1 - self._past[name] / self._epochs[name]) for name, cost in self._cost.items())
        seconds = None
        if self._start is not None and self._worked > 0 and left > 0:
            seconds = left * (time.monotonic() - self._start) / self._worked
        share = sum(self._past.values()) / max(1, sum(self._epochs.values()))
        return Status(len(self._over), len(self._epochs), share, seconds)


def costs(runs: Sequence[Settings], pairs: dict[str, AnyPair]) -> dict[str, float]:
    """Return the approximate work of each run, by id: images through the network, a training step counted thrice."""
    sized = functools.cache(lambda key: _images_per_epoch(key, pairs[key.data]))  # for all runs of equal size
    keys = [Settings(**{name: getattr(run, name) for name in _SIZES}) for run in runs]
    return {run.run_id: run.epochs * sized(key) for run, key in zip(runs, keys, strict=True)}


def _images_per_epoch(run: Settings, pair: AnyPair) -> float:
    labels = pair.train.labels
    kept, held = pool(run, labels)
    shown = evaluated = float(kept.numel())
    if run.scenario == "arrival":
        shown = evaluated = run.fraction * kept.numel()
    elif run.scenario == "stream":
        evaluated = min(memory_capacity(run.memory) or kept.numel(), kept.numel())
        if run.stream == "access":
            shown = run.fraction * kept.numel()
        else:
            assert run.imbalance is not None
            smallest = int(labels[kept].bincount().min())
            shown = float(sum(long_tail_counts(smallest, pair.num_classes, run.imbalance)))
    return 3 * shown + evaluated + pair.test.labels.numel() + held.numel()
