"""How training progresses, for people: nothing, or a line now and then, which a terminal shows in one place."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Sequence

from aol._values import printable
from aol.lab.engine.loop import Loop
from aol.lab.settings import Settings
from aol.longtail import long_tail_counts

_SHOW_EVERY, _LINE_EVERY = 0.5, 10.0  # seconds between two displays within an epoch, and between two lines
_CLEAR = "\r\x1b[K"  # the line of a terminal


class Silent:
    """Counts epochs of runs, estimates the time that is left, and prints nothing."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._past: dict[str, float] = {}  # epochs that are over
        self._start: float | None = None
        self._worked, self._shown = 0.0, -math.inf  # epochs of all runs, in this process
        self._said: set[str] = set()

    def start(self, runs: Sequence[Settings], left: Sequence[Settings]) -> None:
        """Take all runs, and those that are not complete."""
        self._epochs = {run.run_id: run.epochs for run in runs}
        self._past = {**self._epochs, **{run.run_id: 0.0 for run in left}}

    def begin(self, runs: Sequence[Settings], epoch: int, doing: str) -> None:
        """Take runs that begin here, or continue after an epoch, and what is going on in a few words."""
        self._start = self._start or time.monotonic()
        self._past |= {run.run_id: float(epoch) for run in runs}
        self.show(doing)

    def reach(self, runs: Sequence[Settings], epoch: float, doing: str) -> None:
        """Take how many epochs of runs are over; a part of an epoch counts."""
        for run in runs:
            over = min(epoch, float(run.epochs))
            self._worked += over - self._past.get(run.run_id, 0.0)
            self._past[run.run_id] = over
        self._shown = time.monotonic()
        self.show(doing)

    def within(self, loop: Loop, stopping: bool, part: float) -> None:
        """Take a loop that has begun this part of an epoch; readings on the device are not ready."""
        if stopping:
            self.say_once("Stopping at the end of this epoch; Ctrl-C stops at once.")
        if time.monotonic() - self._shown >= _SHOW_EVERY:
            self.reach(loop.runs, loop.epoch + part, describe(loop, part))

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
        """About how long the rest takes at the speed of this process; None where that is not known."""
        left = sum(epochs - self._past[name] for name, epochs in self._epochs.items())
        if self._start is None or self._worked <= 0 or left <= 0:
            return None
        return left * (time.monotonic() - self._start) / self._worked

    def text(self) -> str:
        """Return how far the runs are, in words."""
        left = "" if self.seconds_left is None else f", about {duration(self.seconds_left)} left"
        return f"{self.done}/{len(self._epochs)} runs complete, {100 * self.share:.0f} % of all epochs{left}"

    def say_once(self, text: str) -> None:
        """Take a sentence that may come again."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def say(self, text: str) -> None:
        """Take a sentence."""

    def show(self, doing: str) -> None:
        """Show how far the runs are and what is going on."""

    def close(self) -> None:
        """Take the end."""


class Lines(Silent):
    """A line now and then on standard error; on a terminal one line at the bottom, written anew each time."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self._name, self._last = f"{name}: " if name else "", -math.inf
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, text: str) -> None:  # noqa: D102
        print(_CLEAR * self._live + printable(text), file=sys.stderr, flush=True)

    def show(self, doing: str) -> None:  # noqa: D102
        line = f"{self._name}{self.text()}. {doing}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(_CLEAR + printable(line)[:width], end="", file=sys.stderr, flush=True)
        elif doing and (time.monotonic() - self._last >= _LINE_EVERY or self.share == 1.0):
            self._last = time.monotonic()
            self.say(line)

    def close(self) -> None:  # noqa: D102
        print(_CLEAR * self._live, end="", file=sys.stderr, flush=True)


def describe(loop: Loop, within: float | None = None) -> str:
    """Return what a loop does, in a few words; `within` is the share of an epoch that is not over."""
    run = loop.settings
    what = run.data if run.imbalance is None else f"{run.data}, imbalance {run.imbalance:g}"
    many = f"{len(loop.runs)} runs as one network" if len(loop.runs) > 1 else "one run"
    text = f"Training {many} ({what}): epoch {loop.epoch + (within is not None)}/{run.epochs}"
    if within is not None:
        return f"{text}, {100 * within:.0f} % of it"
    if not len(loop.history):
        return text
    test, speed = (loop.history.epoch(name)[-1] for name in ("test_accuracy", "images_per_second"))
    low, high = (f"{100 * float(value):.1f}" for value in (test.min(), test.max()))
    accuracy = "" if low == "nan" else f", test {low} %" if low == high else f", test {low} to {high} %"
    return f"{text}, {float(speed[0]):,.0f} images/s{accuracy}"


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
    became = f"it became {largest / smallest:g}, because the largest class has {largest:,} samples"
    return f"Imbalance {run.imbalance:g} is not possible with {run.data}: {became} and the smallest {smallest:,}."


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(5000), duration(95)
    ('1 h 23 min', '2 min')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
