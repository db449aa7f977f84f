"""When training stops, and how it progresses, for people: a line now and then, which a terminal shows in one place."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch.distributed as dist

from aol._values import printable
from aol.lab.settings import Settings

_SHOW_EVERY, _LINE_EVERY = 0.5, 10.0  # seconds between two displays within an epoch, and between two lines
_CLEAR = "\r\x1b[K"  # the line of a terminal


@dataclass
class Stop:
    """When to stop: after some seconds, or at SIGTERM or Ctrl-C; `signal` is which of them came."""

    limit: float | None = None
    signal: int = 0
    came: bool = False
    start: float = field(default_factory=time.monotonic)

    def before(self, seconds: float = 0.0) -> bool:
        """Return whether there is no time left for something that takes so long; all processes agree."""
        self.came = self.came or bool(self.signal) or self.left() < seconds
        if dist.is_initialized():
            wishes: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(wishes, (self.came, self.signal))
            self.came, self.signal = any(came for came, _ in wishes), max(number for _, number in wishes)
        return self.came

    def left(self) -> float:
        """Return the seconds that are left; infinity without a limit."""
        return math.inf if self.limit is None else self.start + self.limit - time.monotonic()

    @contextlib.contextmanager
    def on_signal(self) -> Iterator[None]:
        """Stop at the end of an epoch on SIGTERM, which schedulers send before they kill, and on the first Ctrl-C."""

        def ask(number: int, _frame: FrameType | None) -> None:
            if self.signal and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number

        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if main}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # as in the background of a shell
                signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Progress:
    """Counts epochs of runs, estimates the time that is left, and keeps what is `said`.

    With a `name`, also an empty one, it prints a line now and then on standard error; on a terminal one line at the
    bottom, written anew each time.
    """

    def __init__(self, name: str | None = None) -> None:
        self._prefix, self._printed = f"{name}: " if name else "", -math.inf
        self._prints = name is not None
        self._live = self._prints and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._epochs: dict[str, int] = {}
        self._past: dict[str, float] = {}  # epochs that are over
        self._start: float | None = None
        self._stop, self._now = Stop(), (list[Settings](), 0.0, "")  # runs, epoch and what is going on
        self._worked, self._shown = 0.0, -math.inf  # epochs of all runs, in this process
        self.said: list[str] = []

    def start(self, runs: Sequence[Settings], left: Sequence[Settings], stop: Stop) -> None:
        """Take all runs, those that are not complete, and when to stop."""
        self._stop = stop
        self._epochs = {run.run_id: run.epochs for run in runs}
        self._past = {**self._epochs, **{run.run_id: 0.0 for run in left}}

    def begin(self, runs: Sequence[Settings], epoch: int, doing: str) -> None:
        """Take runs that begin here, or continue after an epoch, and what is going on in a few words."""
        self._start = self._start or time.monotonic()
        self._past |= {run.run_id: float(epoch) for run in runs}
        self._now = list(runs), epoch, doing
        self.show(doing)

    def reach(self, runs: Sequence[Settings], epoch: float, doing: str) -> None:
        """Take how many epochs of runs are over; a part of an epoch counts."""
        for run in runs:
            over = min(epoch, float(run.epochs))
            self._worked += over - self._past.get(run.run_id, 0.0)
            self._past[run.run_id] = over
        self._now, self._shown = (list(runs), epoch, doing), time.monotonic()
        self.show(doing)

    def within(self, part: float) -> None:
        """Take that this part of the next epoch has begun; readings on the device are not ready."""
        if self._stop.signal:
            self.say_once("Stopping at the end of this epoch; Ctrl-C stops at once.")
        if time.monotonic() - self._shown >= _SHOW_EVERY:
            runs, epoch, doing = now = self._now
            self.reach(runs, epoch + part, f"{doing}, {100 * part:.0f} % of the next")
            self._now = now

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
        if text not in self.said:
            self.say(text)

    def say(self, text: str) -> None:
        """Take a sentence."""
        self.said.append(text)
        if self._prints:
            print(_CLEAR * self._live + printable(text), file=sys.stderr, flush=True)

    def show(self, doing: str) -> None:
        """Show how far the runs are and what is going on."""
        line = f"{self._prefix}{self.text()}. {doing}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(_CLEAR + printable(line)[:width], end="", file=sys.stderr, flush=True)
        elif self._prints and doing and (time.monotonic() - self._printed >= _LINE_EVERY or self.share == 1.0):
            self._printed = time.monotonic()
            print(printable(line), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line of a terminal."""
        print(_CLEAR * self._live, end="", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(5000), duration(95)
    ('1 h 23 min', '2 min')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
