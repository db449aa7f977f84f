"""How training progresses, for people: one protocol for `aol train`, `aol stream`, studies and Ray.

`Silent` prints nothing, `Lines` a line now and then for logs, `Live` a bar and a table on a terminal.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aol.engine.loop import Loop, pool
from aol.engine.settings import Settings, memory_capacity
from aol.engine.source import AnyPair
from aol.longtail import long_tail_counts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MOST_ROWS = 24  # runs shown while they train
# Settings that say how many images an epoch has.
_SIZES = ("scenario", "data", "imbalance", "profile", "validation", "samples", "fraction", "stream", "memory")


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
        print(text, file=sys.stderr, flush=True)

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
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__()
        self._name = f"{name}: " if name else ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._task = self._bar.add_task(name, total=1.0, left="")
        self._table: list[Table] = []
        self._live = RichLive(console=console, refresh_per_second=4)
        self._live.start()

    def say(self, text: str) -> None:
        """Print a sentence above the table."""
        self._live.console.print(text, markup=False, highlight=False)

    def update(self, status: Status, doing: str, loop: Loop | None = None) -> None:
        """Move the bar and redraw the table."""
        from rich.console import Group
        from rich.text import Text

        left = "" if status.seconds_left is None else f"{duration(status.seconds_left)} left"
        description = f"{self._name}{status.done}/{status.total} runs"
        self._bar.update(self._task, description=description, completed=status.share, left=left)
        if loop is not None and len(loop.history):
            self._table = [_table(loop)]  # it stays while the next group starts, and at the end
        self._live.update(Group(self._bar, Text(doing, style="dim"), *self._table))

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()


def _table(loop: Loop) -> Table:
    from rich.table import Table

    table = Table("run", "seed", "loss", "train %", "test %", "oldest class", box=None, pad_edge=False)
    train, test, loss = (loop.history.last(name) for name in ("train_accuracy", "test_accuracy", "train_loss"))
    age = loop.history.last("age", by_class=True)
    for row, run in enumerate(loop.runs[:_MOST_ROWS]):
        oldest = int(age[row].nan_to_num(0.0).argmax())
        known = not bool(age[row].isnan().all())
        state = f"failed at epoch {loop.failed[row]}" if loop.failed[row] else f"{float(loss[row]):.3f}"
        table.add_row(
            run.method,
            str(run.seed),
            state,
            _percent(float(train[row])),
            _percent(float(test[row])),
            f"{loop.classes[oldest]} ({float(age[row, oldest]):.1f})" if known else "",
        )
    if len(loop.runs) > _MOST_ROWS:
        table.add_row(f"and {len(loop.runs) - _MOST_ROWS} more")
    return table


def _percent(value: float) -> str:
    return "" if value != value else f"{100 * value:.1f}"


def _accuracy_range(loop: Loop) -> str:
    if not len(loop.history):
        return ""
    accuracy = loop.history.last("test_accuracy")
    known = accuracy[~accuracy.isnan()]
    if not known.numel():
        return ""
    low, high = (f"{100 * float(value):.1f}" for value in (known.min(), known.max()))
    return f", test {low} %" if low == high else f", test {low} to {high} %"


def describe(loop: Loop) -> str:
    """Return what a loop does, in a few words."""
    run = loop.settings
    what = f"{run.data}, imbalance {run.imbalance:g}" if run.imbalance is not None else run.data
    many = f"Training {len(loop.runs)} runs as one network" if len(loop.runs) > 1 else "Training one run"
    speed = f", {float(loop.history.last('images_per_second')[0]):,.0f} images/s" if len(loop.history) else ""
    return f"{many} ({what}): epoch {loop.epoch}/{run.epochs}{speed}"


def duration(seconds: float | None) -> str:
    """Return a duration in words.

    >>> duration(5000), duration(95), duration(None)
    ('1 h 23 min', '2 min', 'unknown')
    """
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Tally:
    """Counts epochs and work, and estimates the time that is left from the speed of this process.

    Args:
        runs: all runs.
        left: those that are not complete at the start.
        pairs: the data sets of those.
    """

    def __init__(self, runs: Sequence[Settings], left: Sequence[Settings], pairs: dict[str, AnyPair]) -> None:
        self._cost = costs(left, pairs)
        self._epochs = {run.run_id: run.epochs for run in runs}
        self._past = dict(self._epochs) | dict.fromkeys(self._cost, 0)
        self._over = set(self._epochs) - set(self._cost)
        self._start: float | None = None
        self._worked = 0.0

    def begin(self, runs: Iterable[Settings], epoch: int) -> None:
        """Note that runs begin here, or continue after an epoch."""
        self._start = self._start or time.monotonic()
        self._past |= {run.run_id: epoch for run in runs if run.run_id in self._cost}

    def epoch(self, runs: Iterable[Settings], epoch: int) -> None:
        """Note that runs have finished an epoch."""
        for run in runs:
            if run.run_id in self._cost:
                self._worked += self._cost[run.run_id] * (epoch - self._past[run.run_id]) / run.epochs
                self._past[run.run_id] = epoch

    def finish(self, runs: Iterable[Settings]) -> None:
        """Note that runs are complete."""
        for run in runs:
            if run.run_id in self._epochs:
                self._past[run.run_id] = run.epochs
                self._over.add(run.run_id)

    def status(self) -> Status:
        """Return how far the runs are."""
        left = sum(cost * (1 - self._past[name] / self._epochs[name]) for name, cost in self._cost.items())
        seconds = None
        if self._start is not None and self._worked > 0 and left > 0:
            seconds = left * (time.monotonic() - self._start) / self._worked
        share = sum(self._past[name] for name in self._epochs) / max(1, sum(self._epochs.values()))
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
            shown = float(sum(long_tail_counts(smallest, pair.num_classes, run.imbalance, profile=run.profile)))
    return 3 * shown + evaluated + pair.test.labels.numel() + held.numel()
