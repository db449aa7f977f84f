"""How a run looks while it goes on: a live table on a terminal, plain lines elsewhere, nothing with --json."""

from __future__ import annotations

import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from aol.engine.loop import Loop

_MOST_ROWS = 24  # runs shown while they train; all are in the records


class Quiet:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Do nothing."""

    def begin(self, stack: int, stacks: int, loop: Loop) -> None:
        """Do nothing."""

    def epoch(self, loop: Loop) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Lines(Quiet):
    """A line now and then, on standard error, for logs and pipes."""

    def __init__(self, every: float = 10.0) -> None:
        self._every = every
        self._last = 0.0

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, file=sys.stderr, flush=True)

    def begin(self, stack: int, stacks: int, loop: Loop) -> None:
        """Print what begins."""
        at = f", from epoch {loop.epoch + 1}" if loop.epoch else ""
        self.say(f"stack {stack + 1} of {stacks}: {len(loop.runs)} runs together{at}")

    def epoch(self, loop: Loop) -> None:
        """Print where it stands, if the last word was a while ago."""
        if time.monotonic() - self._last < self._every and not loop.done:
            return
        self._last = time.monotonic()
        accuracy = loop.history.epoch("test_accuracy")[-1]
        speed = float(loop.history.epoch("images_per_second")[-1, 0])
        known = accuracy[~accuracy.isnan()]
        read = f"test {100 * float(known.min()):.1f} to {100 * float(known.max()):.1f} %, " if known.numel() else ""
        self.say(f"epoch {loop.epoch}/{loop.settings.epochs}: {read}{speed:,.0f} images/s")


class Screen(Quiet):
    """A progress bar with the time left, and the runs as a table, redrawn as they go."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("")
        self._live = Live(console=console, refresh_per_second=4)
        self._live.start()

    def say(self, text: str) -> None:
        """Print a sentence above the table."""
        self._live.console.print(text)

    def begin(self, stack: int, stacks: int, loop: Loop) -> None:
        """Start the bar of a stack."""
        self._bar.reset(
            self._task,
            description=f"stack {stack + 1}/{stacks}",
            total=loop.settings.epochs,
            completed=loop.epoch,
        )
        self._live.update(Group(self._bar))

    def epoch(self, loop: Loop) -> None:
        """Move the bar and redraw the table."""
        self._bar.update(self._task, completed=loop.epoch)
        table = Table("run", "seed", "loss", "train %", "test %", "oldest class", box=None, pad_edge=False)
        train, test = loop.history.epoch("train_accuracy")[-1], loop.history.epoch("test_accuracy")[-1]
        loss, age = loop.history.epoch("train_loss")[-1], loop.history.by_class("age")[-1]
        for row, run in enumerate(loop.runs[:_MOST_ROWS]):
            oldest = age[row].nan_to_num(0.0).argmax()
            state = f"failed at epoch {loop.failed[row]}" if loop.failed[row] else f"{float(loss[row]):.3f}"
            table.add_row(
                run.method,
                str(run.seed),
                state,
                _percent(float(train[row])),
                _percent(float(test[row])),
                f"{loop.classes[int(oldest)]} ({float(age[row, oldest]):.1f})",
            )
        if len(loop.runs) > _MOST_ROWS:
            table.add_row(f"and {len(loop.runs) - _MOST_ROWS} more")
        self._live.update(Group(self._bar, table))

    def close(self) -> None:
        """Leave the last picture standing."""
        self._live.stop()


def _percent(value: float) -> str:
    return "" if value != value else f"{100 * value:.1f}"
