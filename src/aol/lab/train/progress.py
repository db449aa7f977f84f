"""How training progresses, for people: nothing, a line now and then for logs, or a bar on a terminal (by rich)."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aol._values import printable
from aol.lab.engine.loop import Loop
from aol.lab.engine.samples import pool
from aol.lab.engine.source import AnyPair
from aol.lab.settings import Settings, memory_capacity
from aol.longtail import long_tail_counts

if TYPE_CHECKING:
    from rich.console import Console

_SHOW_EVERY = 0.5  # seconds between two displays within an epoch
# Settings that say how many images an epoch has.
_SIZES = ("scenario", "data", "imbalance", "validation", "samples", "fraction", "stream", "memory")


class Silent:
    """Follows the runs, and prints nothing."""

    def __init__(self) -> None:
        self.tally = Tally((), (), {})
        self._said: set[str] = set()
        self._shown = -math.inf

    def start(self, runs: Sequence[Settings], left: Sequence[Settings], pairs: Mapping[str, AnyPair]) -> None:
        """Take all runs, those that are not complete, and their data sets."""
        self.tally = Tally(runs, left, pairs)

    def say(self, text: str) -> None:
        """Take a sentence."""

    def say_once(self, text: str) -> None:
        """Take a sentence that may come again."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def begin(self, loop: Loop) -> None:
        """Take a loop before its first epoch here."""
        if text := imbalance_note(loop):
            self.say_once(text)
        self.tally.begin(loop.runs, loop.epoch)
        self.show(describe(loop))

    def epoch(self, loop: Loop) -> None:
        """Take a loop after an epoch."""
        self.tally.reach(loop.runs, loop.epoch)
        self._shown = time.monotonic()
        self.show(describe(loop), last=loop.done)

    def batch(self, loop: Loop) -> None:
        """Take a loop within an epoch; readings on the device are not ready."""
        if time.monotonic() - self._shown >= _SHOW_EVERY:
            self._shown = time.monotonic()
            part = self.tally.batch(loop.runs, loop.epoch, loop.work)
            self.show(describe(loop, part))

    def finish(self, runs: Sequence[Settings]) -> None:
        """Take runs that are complete."""
        self.tally.reach(runs, math.inf)
        self.show("")

    def show(self, doing: str, *, last: bool = False) -> None:
        """Show the tally and what is going on in a few words, for the last time in a group or not."""

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

    def show(self, doing: str, *, last: bool = False) -> None:
        """Print the tally, if the last line was a while ago."""
        if doing and (last or time.monotonic() - self._last >= self._every):
            self._last = time.monotonic()
            self.say(f"{self.tally.text()}. {doing}")


class Live(Silent):
    """A progress bar and what is going on, redrawn in place."""

    def __init__(self, console: Console, name: str = "") -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__()
        what = TextColumn("{task.description}", markup=False)
        self._name = f"{printable(name)}: " if name else ""
        self._bar = Progress(BarColumn(20), what, console=console)
        self._task = self._bar.add_task(f"{self._name}starting", total=1.0)
        self._bar.start()

    def say(self, text: str) -> None:
        """Print a sentence above the bar."""
        self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def show(self, doing: str, *, last: bool = False) -> None:
        """Move the bar."""
        text = f"{self._name}{self.tally.text()}\n{printable(doing)}"
        self._bar.update(self._task, description=text, completed=self.tally.share)

    def close(self) -> None:
        """Leave the bar on the screen."""
        self._bar.stop()


class Tally:
    """Counts epochs and work, and estimates the time that is left from the speed of this process.

    Of all `runs`, those that are `left` are not complete at the start; `pairs` has their data sets.
    """

    def __init__(self, runs: Sequence[Settings], left: Sequence[Settings], pairs: Mapping[str, AnyPair]) -> None:
        self._cost = costs(left, pairs)
        self._epochs = {run.run_id: run.epochs for run in runs}
        self._past: dict[str, float] = {**self._epochs, **dict.fromkeys(self._cost, 0)}  # epochs that are over
        self._start: float | None = None
        self._worked = 0.0

    def begin(self, runs: Sequence[Settings], epoch: int) -> None:
        """Note that runs begin here, or continue after an epoch."""
        self._start = self._start or time.monotonic()
        self._past |= {run.run_id: epoch for run in runs if run.run_id in self._cost}

    def reach(self, runs: Sequence[Settings], epoch: float) -> None:
        """Note how many epochs of runs are over; a part of an epoch counts."""
        for run in runs:
            if run.run_id in self._cost:
                over = min(epoch, run.epochs)
                self._worked += self._cost[run.run_id] * (over - self._past[run.run_id]) / run.epochs
                self._past[run.run_id] = over

    def batch(self, runs: Sequence[Settings], epoch: int, work: float) -> float:
        """Note how much work, of `costs`, was done after an epoch; return the share of the next one."""
        shares = [min(1.0, work * run.epochs / self._cost[run.run_id]) for run in runs if run.run_id in self._cost]
        share = max(shares, default=0.0)
        self.reach(runs, epoch + share)
        return share

    @property
    def done(self) -> int:
        """How many runs are over."""
        return sum(self._past[name] >= epochs for name, epochs in self._epochs.items())

    @property
    def share(self) -> float:
        """The share of all epochs that is over."""
        return sum(self._past[name] for name in self._epochs) / max(1, sum(self._epochs.values()))

    @property
    def seconds_left(self) -> float | None:
        """About how long the rest takes; None where that is not known."""
        left = sum(cost * (1 - self._past[name] / self._epochs[name]) for name, cost in self._cost.items())
        if self._start is None or self._worked <= 0 or left <= 0:
            return None
        return left * (time.monotonic() - self._start) / self._worked

    def text(self) -> str:
        """Return how far the runs are, in words."""
        left = "" if self.seconds_left is None else f", about {duration(self.seconds_left)} left"
        return f"{self.done}/{len(self._epochs)} runs complete, {100 * self.share:.0f} % of all epochs{left}"


def costs(runs: Sequence[Settings], pairs: Mapping[str, AnyPair]) -> dict[str, float]:
    """Return the approximate work of each run, by id: images through the network, a training step counted thrice."""
    sized = functools.cache(lambda key: _images_per_epoch(key, pairs[key.data]))  # for all runs of equal size
    keys = [Settings(**{name: getattr(run, name) for name in _SIZES}) for run in runs]
    return {run.run_id: run.epochs * sized(key) for run, key in zip(runs, keys, strict=True)}


def _images_per_epoch(run: Settings, pair: AnyPair) -> float:
    labels = pair.train.labels
    kept, held = pool(run, labels)
    shown = evaluated = float(kept.numel())
    if run.scenario == "arrival":
        shown = evaluated = run.fraction * shown
    elif run.scenario == "stream":
        evaluated = min(memory_capacity(run.memory) or shown, shown)
        smallest = int(labels[kept].bincount().min())
        shown *= run.fraction
        if run.stream == "shifting" and run.imbalance is not None:
            shown = float(sum(long_tail_counts(smallest, pair.num_classes, run.imbalance)))
    return 3 * shown + evaluated + pair.test.labels.numel() + held.numel()


def describe(loop: Loop, within: float | None = None) -> str:
    """Return what a loop does, in a few words; `within` is the share of an epoch that is not over."""
    run = loop.settings
    what = f"{run.data}, imbalance {run.imbalance:g}" if run.imbalance is not None else run.data
    many = f"Training {len(loop.runs)} runs as one network" if len(loop.runs) > 1 else "Training one run"
    epoch = f"{loop.epoch}" if within is None else f"{loop.epoch + 1}"
    text = f"{many} ({what}): epoch {epoch}/{run.epochs}"
    if within is not None:
        return f"{text}, {100 * within:.0f} % of it"
    if not len(loop.history):
        return text
    accuracy = loop.history.last("test_accuracy")
    low, high = (f"{100 * float(value):.1f}" for value in (accuracy.min(), accuracy.max()))
    test = "" if "nan" in low else f", test {low} %" if low == high else f", test {low} to {high} %"
    return f"{text}, {float(loop.history.last('images_per_second')[0]):,.0f} images/s{test}"


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
