"""How runs look: while they go on, a live table on a terminal, plain lines elsewhere; when they are over, a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from aol.engine.loop import Loop
from aol.engine.results import Json, compare, settings_of

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
        runs = f"{len(loop.runs)} runs together" if len(loop.runs) > 1 else "one run"
        self.say(f"stack {stack + 1} of {stacks}: {runs}{at}")

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
        loss, age = loop.history.epoch("train_loss")[-1], loop.history.by_class("smoothed_age")[-1]
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
        self._live.update(Group(self._bar, table))

    def close(self) -> None:
        """Leave the last picture standing."""
        self._live.stop()


def _percent(value: float) -> str:
    return "" if value != value else f"{100 * value:.1f}"


def report(results: Sequence[dict[str, Json]], out: Path, *, try_next: str) -> None:
    """Print the table over seeds, what failed, where the records are, and what to try next."""
    stream = any("second_half_mean" in str(each["accuracy"]) for each in results)
    figure = "second_half_mean" if stream else "tail_mean"
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    rows = compare(results, figure)
    named = any(row.circumstances for row in rows)
    head = ["method", "seeds", "test %", "spread", "against none", "95 % interval"]
    table = Table(*(["with", *head] if named else head))
    for row in rows:
        spread = "" if row.spread != row.spread else f"{100 * row.spread:.2f}"
        difference = "" if row.difference is None else f"{100 * row.difference:+.2f}"
        interval = "" if row.interval is None else f"{100 * row.interval[0]:+.2f} to {100 * row.interval[1]:+.2f}"
        cells = [row.method, str(row.seeds), f"{100 * row.mean:.2f}", spread, difference, interval]
        table.add_row(*([row.circumstances, *cells] if named else cells))
    console.print(table)
    what = "the second half of the stream" if stream else "the last 5 % of epochs"
    spread = "spread is the standard deviation over seeds, differences are paired by seed, intervals Student's."
    lines = [f"Test accuracy, mean over {what}; {spread}"]
    for each, run in ((each, settings_of(each)) for each in results):
        if epoch := each.get("failed_at_epoch"):
            lines.append(f"Failed: {run.method}, seed {run.seed}: its loss was not finite in epoch {epoch}.")
    lines.append(f"Records of every epoch and class: {out / 'runs'}; one folder a run, named in its result.json.")
    lines.append(f"Where they were wrong, and for how long: aol report {out}")
    lines.append(f"Try next: {try_next}")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
