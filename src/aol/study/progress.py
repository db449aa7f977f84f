"""How a study goes, for people: runs done, and the time left; live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from aol.engine.settings import Settings
from aol.engine.source import AnyPair
from aol.study.plan import costs


@dataclass(frozen=True)
class Going:
    """How far a study is: runs done, runs in all, the part of all epochs that is over, and the seconds left."""

    done: int
    runs: int
    part: float
    seconds_left: float | None


class Tally:
    """Counts epochs and work while a study goes on, and knows how fast this process is.

    Args:
        runs: all of the study.
        left: those without a record at the start.
        pairs: the data sets of those.
    """

    def __init__(self, runs: Sequence[Settings], left: Sequence[Settings], pairs: dict[str, AnyPair]) -> None:
        self._cost = costs(left, pairs)
        self._epochs = {run.run_id: run.epochs for run in runs}
        self._past = dict(self._epochs) | dict.fromkeys(self._cost, 0)
        self._over = set(self._epochs) - set(self._cost)
        self._start: float | None = None
        self._worked = 0.0
        self.others = 0  # how many other processes are at it; taken to be as fast as this one

    def begin(self, runs: Iterable[Settings], epoch: int) -> None:
        """Note that runs begin here, or go on after an epoch."""
        self._start = self._start or time.monotonic()
        self.elsewhere(runs, epoch)

    def elsewhere(self, runs: Iterable[Settings], epoch: int) -> None:
        """Note how far runs are that another process trains."""
        self._past |= {run.run_id: epoch for run in runs if run.run_id in self._cost}

    def epoch(self, runs: Iterable[Settings], epoch: int) -> None:
        """Note that runs, after this epoch, are that far."""
        for run in runs:
            if run.run_id in self._cost:
                self._worked += self._cost[run.run_id] * (epoch - self._past[run.run_id]) / run.epochs
                self._past[run.run_id] = epoch

    def finish(self, runs: Iterable[Settings]) -> None:
        """Note that runs are over."""
        for run in runs:
            if run.run_id in self._epochs:
                self._past[run.run_id] = run.epochs
                self._over.add(run.run_id)

    def standing(self) -> Going:
        """Return how far the study is."""
        left = sum(cost * (1 - self._past[name] / self._epochs[name]) for name, cost in self._cost.items())
        seconds = None
        if self._start is not None and self._worked > 0 and left > 0:
            seconds = left * (time.monotonic() - self._start) / self._worked / (1 + self.others)
        part = sum(self._past[name] for name in self._epochs) / max(1, sum(self._epochs.values()))
        return Going(len(self._over), len(self._epochs), part, seconds)


def spoken(seconds: float | None) -> str:
    """Return a duration in words.

    >>> spoken(5000), spoken(95), spoken(None)
    ('1 h 23 min', '2 min', 'unknown')
    """
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Display:
    """Says nothing: for JSON."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Hear a sentence."""

    def say_once(self, text: str) -> None:
        """Hear a sentence, unless it was said before."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def show(self, going: Going, now: str) -> None:
        """See how far the study is, and what is under way."""

    def close(self) -> None:
        """See the end."""


class Lines(Display):
    """A line now and then, on standard error, for logs and pipes."""

    def __init__(self, every: float = 10.0) -> None:
        super().__init__()
        self._every = every
        self._last = -every

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, file=sys.stderr, flush=True)

    def show(self, going: Going, now: str) -> None:
        """Print where it stands, if the last word was a while ago."""
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            left = "" if going.seconds_left is None else f"; about {spoken(going.seconds_left)} left"
            self.say(f"{going.done} of {going.runs} runs done, {100 * going.part:.0f} % of all epochs{left}. {now}")


class Screen(Display):
    """A bar over the whole study with the time left, and a line about what is under way."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[now]}", style="dim"),
            console=console,
        )
        self._name = name
        self._task = self._bar.add_task(name, total=1.0, left="", now="")
        self._bar.start()

    def say(self, text: str) -> None:
        """Print a sentence above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def show(self, going: Going, now: str) -> None:
        """Move the bar."""
        left = "" if going.seconds_left is None else f"{spoken(going.seconds_left)} left"
        description = f"{self._name}: {going.done} of {going.runs} runs"
        self._bar.update(self._task, description=description, completed=going.part, left=left, now=now)

    def close(self) -> None:
        """Leave the last picture standing."""
        self._bar.stop()
