"""Passes over samples whose batches a thread makes ahead, and whose successor may be announced before they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from queue import Full, Queue
from typing import Generic, TypeVar

W = TypeVar("W")
B = TypeVar("B")


class Pass(Generic[B]):
    """One pass: yields batches that a thread makes, at most `depth` of them ahead; with 0, they are made here.

    Args:
        make: called once with this pass; yields batches. It calls `may_ask` before it asks for data and `may_make`
            before it makes a batch, and sets `asked` when it has asked for all: the passes of a source follow one
            another, and the first data of a pass are read while the last batches of the one before are made.
        before: the pass before, or None.
    """

    def __init__(self, make: Callable[[Pass[B]], Iterator[B]], before: Pass[B] | None, *, depth: int) -> None:
        self.asked, self._made = threading.Event(), threading.Event()
        self._make, self._before, self._stopped = make, before, False
        self._queue: Queue[B | BaseException | None] = Queue(depth)
        self._thread = threading.Thread(target=self._run, daemon=True) if depth else None
        if self._thread is not None:
            self._thread.start()

    def may_ask(self) -> None:
        """Wait until the pass before has asked for all its data."""
        if self._before is not None:
            self._before.asked.wait()

    def may_make(self) -> None:
        """Wait until the pass before has made all its batches."""
        if self._before is not None:
            self._before._made.wait()
            self._before = None

    def _run(self) -> None:
        try:
            with closing(self._make(self)) as batches:  # type: ignore[type-var]
                while not self._stopped and (batch := next(batches, None)) is not None:
                    self._put(batch)
            self._put(None)
        except BaseException as error:
            self._put(error)
        finally:
            self.asked.set()
            self._made.set()

    def _put(self, batch: B | BaseException | None) -> None:
        while not self._stopped:
            try:
                self._queue.put(batch, timeout=0.1)
                return
            except Full:
                pass

    def __iter__(self) -> Iterator[B]:
        if self._thread is None:
            yield from self._make(self)
            return
        try:
            while (batch := self._queue.get()) is not None:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            self.stop()

    def stop(self) -> None:
        """End the thread; batches that were made are dropped."""
        self._stopped = True
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()
        self._queue = Queue()
        self._queue.put(None)


class Passes(Generic[W, B]):
    """The passes of a source, one after the other.

    Args:
        make: called with what a pass is to show, and the pass; yields its batches.
        depth: how many batches are made ahead; with 0, none is, and nothing is expected.
    """

    def __init__(self, make: Callable[[W, Pass[B]], Iterator[B]], *, depth: int) -> None:
        self._make, self._depth = make, depth
        self._now: Pass[B] | None = None
        self._expected: tuple[W, Pass[B]] | None = None

    def start(self, wanted: W) -> Pass[B]:
        """Return the pass that shows this: the one that is expected, or a new one."""
        if self._expected is None or self._expected[0] != wanted:
            self.stop()
            self._now = self._begin(wanted)
        else:
            if self._now is not None:
                self._now.stop()  # where it was not read to its end, the expected one would wait for it
            self._now, self._expected = self._expected[1], None
        return self._now

    def expect(self, wanted: W) -> None:
        """Begin with a pass when the present one has been made; what it shows must then be asked for with `start`."""
        if self._depth and self._expected is None:
            self._expected = wanted, self._begin(wanted)

    def _begin(self, wanted: W) -> Pass[B]:
        return Pass(lambda now: self._make(wanted, now), self._now, depth=self._depth)

    def stop(self) -> None:
        """Drop the present pass and the expected one."""
        for each in (self._now, self._expected and self._expected[1]):
            if each is not None:
                each.stop()
        self._now = self._expected = None
