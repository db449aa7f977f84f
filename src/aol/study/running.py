"""A study run by this process: stack after stack, only what is missing, beside any others that share the folder.

What is there: records in `FOLDER/records`, stacks that are under way in `FOLDER/work`. What goes wrong with one stack
(too large for memory) is said, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from aol.engine.loop import Loop
from aol.engine.settings import Settings
from aol.engine.source import AnyPair
from aol.engine.training import Conduct, check, group
from aol.study.claims import Claims, TakenOverError
from aol.study.plan import enough
from aol.study.progress import Display, Tally
from aol.study.records import Record, Store
from aol.study.spec import Study
from aol.study.stacks import Stack
from aol.study.stopping import Stop
from aol.study.training import TooLargeError, train_stack

Opened = Callable[[Sequence[Settings]], dict[str, AnyPair]]
_HALF_MADE = 1.0  # seconds to wait for another process that is about to write down the runs of its stack


class Work:
    """What is left of a study, and who may do it: asked for one stack after the other.

    Args:
        study: what is wanted.
        store: where records go.
        claims: who trains what.
        conduct: device, and how many together.
        open_data: opens the data sets of some runs.
        display: where sentences go.
    """

    def __init__(
        self, study: Study, store: Store, claims: Claims, conduct: Conduct, open_data: Opened, display: Display
    ) -> None:
        self.study, self.store, self.claims, self.conduct, self.display = study, store, claims, conduct, display
        self.trained = 0
        self.untrained: dict[str, str] = {}  # runs that cannot be trained here, by id, and why
        self._runs = study.all_runs()
        self._done: set[str] = set()
        self._most: dict[object, int] = {}  # how many together, where that was found to be too many
        self._aside: set[str] = set()  # stacks that are none for this device
        claims.tidy()
        for path, why in store.damaged([run.run_id for run in self._runs]):
            display.say(f"{path} is damaged and its run is done again: {why}.")
        left = self.left()
        self.pairs = open_data(left)
        check(left, self.pairs, conduct)
        self.tally = Tally(self._runs, left, self.pairs)

    def left(self) -> list[Settings]:
        """Return the runs without a record, in the order of the study."""
        return [run for run in self._runs if self._lacks(run)]

    def _lacks(self, run: Settings) -> bool:
        if run.run_id in self._done:
            return False
        record = self.store.get(run.run_id)
        if record is None or not enough(record, self.study.keep):
            return True
        self._done.add(run.run_id)
        return False

    def next_stack(self) -> Stack | None:
        """Return a stack for this process: one that was left behind, or a new one; None if there is none to be had.

        Runs are grouped the same by however many processes: while one makes a stack, the others wait for what it takes.
        """
        end = time.monotonic() + _HALF_MADE
        while not (stack := self._left_behind()):
            tied = self.claims.bound()  # before records are read: what another has finished is tied, or has its record
            left = [run for run in self.left() if run.run_id not in self.untrained]
            free = [run for run in left if run.run_id not in tied]
            if not free:
                return None
            begun = {tied[run.run_id] for run in left if run.run_id in tied}
            half_made = any(held.stack.name in begun and not held.stack.runs for held in self.claims.look())
            if half_made and time.monotonic() < end:
                time.sleep(0.005)
            elif new := self._new_stack(free):
                return new
        return stack

    def _left_behind(self) -> Stack | None:
        """Return a stack whose holder is gone, and hold it; remove what is left of those that are finished."""
        names = {run.run_id for run in self.left()} - set(self.untrained)
        self.see_others()
        for held in self.claims.look():
            ours = not held.stack.runs or not names.isdisjoint(run.run_id for run in held.stack.runs)
            finished = bool(held.stack.runs) and all(run.run_id in self._done for run in held.stack.runs)
            if held.alive is not False or held.stack.name in self._aside or not (ours or finished):
                continue
            if not self.claims.take_over(held):
                continue
            if held.stack.runs and not finished:
                return held.stack
            self.claims.dissolve(held.stack)  # its holder died before it had runs, or after it had their records
        return None

    def _new_stack(self, free: list[Settings]) -> Stack | None:
        key = free[0].group_key
        some = [run for run in free if run.group_key == key]
        most = self._most.get(key, self.conduct.together)
        (first, *_) = group(some, self.pairs, replace(self.conduct, together=most), 1, _Said(self.display))
        return self.claims.bind(first, self.study.keep, wanted=self._lacks)

    def wait_for_others(self) -> bool:
        """Return whether to ask again: some stack's holder may be dead. False if all that is left is in good hands."""
        names = {run.run_id for run in self.left()} - set(self.untrained)
        tied: dict[str, set[str]] = {}  # also what a stack has whose holder died before it had written down its runs
        for run, stack in self.claims.bound().items():
            tied.setdefault(stack, set()).add(run)
        for held in self.claims.look():
            runs = {run.run_id for run in held.stack.runs} or tied.get(held.stack.name, set())
            if held.alive is not True and held.stack.name not in self._aside and not names.isdisjoint(runs):
                return True
        return False

    def see_others(self) -> None:
        """Tell the tally how far the others are."""
        others = [each.stack for each in self.claims.look() if each.alive and not self.claims.holds(each.stack)]
        self.tally.others = len(others)
        for stack in others:
            self.tally.elsewhere(stack.runs, stack.stand())
        self.tally.finish(run for run in self._runs if run.run_id in self._done)

    def finish(self, stack: Stack, records: Sequence[Record]) -> None:
        """Keep the records of a stack, and remove what was there of it meanwhile."""
        self.claims.check(stack)
        for record in records:
            self.store.sweep(record.run_id)
            self.store.put(record)
            if enough(record, self.study.keep):  # not so where the stack was begun by a study that keeps less
                self._done.add(record.run_id)
        self.trained += len(records)
        self.tally.finish(run for run in stack.runs if run.run_id in self._done)
        self.display.show(self.tally.standing(), "")
        self.claims.dissolve(stack)

    def split(self, stack: Stack, reason: str) -> None:
        """Train fewer together from now on, of runs like these; a stack that was begun is left to a larger device."""
        size = len(stack.runs)
        if stack.checkpoint.exists():
            self.display.say(
                f"{size} runs were begun together on a larger device and do not fit into the memory of this one; they "
                f"wait for such a device, or delete {stack.folder} to begin them again."
            )
            self.set_aside(stack, reason)
            return
        if size == 1:
            self.untrained[stack.runs[0].run_id] = reason
            self.display.say(f"One run alone does not fit into memory: {stack.runs[0].method}. ({reason})")
        else:
            self._most[stack.runs[0].group_key] = half = -(-size // 2)
            self.display.say(f"{size} runs together do not fit into memory: trying {half} together. ({reason})")
        self.claims.dissolve(stack)

    def set_aside(self, stack: Stack, reason: str) -> None:
        """Leave a stack, as it is, to another process."""
        self._aside.add(stack.name)
        self.untrained |= {run.run_id: reason for run in stack.runs}
        self.display.say(f"{len(stack.runs)} runs are left as they are: {reason}")
        self.claims.release(stack)


class _Said:
    """Passes on what the engine says, once."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def say(self, text: str) -> None:
        self._display.say_once(text)

    def begin(self, stack: int, stacks: int, loop: Loop) -> None:
        """Nothing begins here."""

    def epoch(self, loop: Loop) -> None:
        """Nothing goes on here."""


class _Watch:
    """Tells the display how a stack goes, writes down where it stands, and knows when to stop."""

    def __init__(self, work: Work, stack: Stack, stop: Stop) -> None:
        self._work, self._stack, self._stop = work, stack, stop
        self._noted = 0.0
        self._looked = time.monotonic()

    def say(self, text: str) -> None:
        self._work.display.say(text)

    def begin(self, loop: Loop) -> None:
        self._work.tally.begin(self._stack.runs, loop.epoch)
        if loop.epoch:
            self.say(f"{len(loop.runs)} runs go on after epoch {loop.epoch}.")
        self._tell(loop)

    def epoch(self, loop: Loop) -> None:
        self._work.tally.epoch(self._stack.runs, loop.epoch)
        self._tell(loop)

    def may_write(self) -> None:
        self._work.claims.check(self._stack)

    def stop_before(self, seconds: float) -> bool:
        return self._stop.before(seconds)

    def _tell(self, loop: Loop) -> None:
        if time.monotonic() - self._noted >= 1.0:
            self._stack.note(loop.epoch)
            self._noted = time.monotonic()
        if time.monotonic() - self._looked >= 15.0:
            self._work.see_others()
            self._looked = time.monotonic()
        self._work.display.show(self._work.tally.standing(), _described(loop))


def _described(loop: Loop) -> str:
    run = loop.settings
    what = f"{run.data}, imbalance {run.imbalance:g}" if run.imbalance is not None else run.data
    many = f"{len(loop.runs)} runs together" if len(loop.runs) > 1 else "one run"
    speed = f", {float(loop.history.epoch('images_per_second')[-1, 0]):,.0f} images/s" if len(loop.history) else ""
    return f"{many}, {what}: epoch {loop.epoch} of {run.epochs}{speed}"


def run_here(work: Work, stop: Stop) -> None:
    """Train what is missing in this process, until nothing is left, nothing can be had, or it is time to stop."""
    start_up = 0.0
    with stop.on_signal():
        while not stop.before(start_up):
            begun = time.monotonic()
            stack = work.next_stack()
            if stack is None:
                if not work.wait_for_others():
                    return
                work.display.say_once("What is left was begun by processes elsewhere: watching whether they are there.")
                time.sleep(min(1.0, work.claims.beat_seconds))
                continue
            watch = _Timed(work, stack, stop, begun)
            try:
                records = train_stack(stack.runs, work.pairs, work.conduct, stack.checkpoint, watch, stack.keep)
                if records is None:
                    work.claims.release(stack)
                    return
                work.finish(stack, records)
            except TooLargeError as error:
                work.split(stack, str(error))
            except TakenOverError as error:
                work.display.say(str(error))
            except BaseException:
                work.claims.release(stack)
                raise
            start_up = max(start_up, watch.start_up)


class _Timed(_Watch):
    """Also knows how long it took until the first epoch was over: the next stack will take as long, at least."""

    def __init__(self, work: Work, stack: Stack, stop: Stop, begun: float) -> None:
        super().__init__(work, stack, stop)
        self._begun = begun
        self.start_up = 0.0

    def epoch(self, loop: Loop) -> None:
        self.start_up = self.start_up or time.monotonic() - self._begun
        super().epoch(loop)
