"""Passes that a thread makes ahead: what they show, in which order they work, and how they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from aol.lab.engine.prefetch import Pass, Passes
from tests.support.running import PATIENCE


class Maker:
    """Makes passes over some numbers, and notes what it does."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.ended = 0

    def __call__(self, wanted: tuple[int, ...], now: Pass[int]) -> Iterator[int]:
        try:
            now.may_ask()
            self.log.append(("asked", wanted[0]))
            now.asked.set()
            now.may_make()
            for number in wanted:
                if number < 0:
                    raise ValueError(f"number {number}")
                self.log.append(("made", number))
                yield number
        finally:
            self.ended += 1


def soon(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_pass_shows_what_is_wanted_in_order(depth: int) -> None:
    make = Maker()
    passes = Passes(make, depth=depth)
    for wanted in ((1, 2, 3, 4, 5), (7,), (1, 2)):
        assert tuple(passes.start(wanted)) == wanted
    assert make.ended == 3
    passes.stop()


def test_the_expected_pass_follows_before_it_is_asked_for_and_not_sooner() -> None:
    make = Maker()
    passes = Passes(make, depth=2)
    first = iter(passes.start((1, 2, 3, 4)))
    passes.expect((11, 12, 13, 14))
    soon(lambda: ("asked", 11) in make.log)
    time.sleep(0.02)
    assert ("made", 11) not in make.log  # the first pass is not made yet: two of four are waiting, a third is held
    assert list(first) == [1, 2, 3, 4]
    soon(lambda: ("made", 13) in make.log)  # before anybody asked for it: two wait, the third is held
    made = [number for what, number in make.log if what == "made"]
    assert made == sorted(made)
    second = passes.start((11, 12, 13, 14))
    assert list(second) == [11, 12, 13, 14]
    assert make.log.count(("made", 11)) == 1  # it is the expected one
    passes.stop()


def test_an_expected_pass_does_not_wait_for_one_that_nobody_reads_on() -> None:
    make = Maker()
    passes = Passes(make, depth=1)
    left = iter(passes.start((1, 2, 3, 4, 5)))
    assert next(left) == 1
    passes.expect((11, 12))
    shown: list[int] = []
    reader = threading.Thread(target=lambda: shown.extend(passes.start((11, 12))), daemon=True)
    reader.start()
    reader.join(10)
    assert shown == [11, 12]
    assert list(left) == []


def test_an_expected_pass_is_dropped_where_another_is_wanted() -> None:
    make = Maker()
    passes = Passes(make, depth=2)
    assert list(passes.start((1, 2))) == [1, 2]
    passes.expect((11, 12, 13, 14, 15))
    soon(lambda: ("made", 12) in make.log)
    assert list(passes.start((21, 22))) == [21, 22]
    assert make.ended == 3
    passes.stop()


def test_nothing_is_expected_where_nothing_is_made_ahead() -> None:
    make = Maker()
    passes = Passes(make, depth=0)
    passes.start((1,))
    passes.expect((2,))
    assert make.log == []
    assert list(passes.start((2,))) == [2]


def test_an_error_is_raised_where_its_batch_is_asked_for() -> None:
    passes = Passes(Maker(), depth=3)
    batches = iter(passes.start((1, 2, -3, 4)))
    assert [next(batches), next(batches)] == [1, 2]
    with pytest.raises(ValueError, match="number -3"):
        next(batches)
    assert list(passes.start((5,))) == [5]
    passes.stop()


def test_threads_end_with_a_pass_that_is_left_and_when_all_are_stopped() -> None:
    before, make = threading.active_count(), Maker()
    passes = Passes(make, depth=1)
    left = iter(passes.start((1, 2, 3, 4)))
    assert next(left) == 1
    left.close()  # type: ignore[attr-defined]
    assert make.ended == 1
    now = passes.start((1, 2, 3))
    passes.expect((4, 5, 6))
    passes.stop()
    assert make.ended == 3
    assert threading.active_count() == before
    assert list(now) == []  # and nobody waits for it


def test_a_pass_may_be_stopped_in_its_own_thread() -> None:
    """There the garbage collector may find a source that nobody uses any more."""
    started, stopped = threading.Event(), threading.Event()

    def make(wanted: tuple[int, ...], _: Pass[int]) -> Iterator[int]:
        yield from wanted
        started.wait()
        passes.stop()
        stopped.set()

    passes = Passes(make, depth=3)
    now = passes.start((1, 2))
    started.set()
    assert stopped.wait(10)
    assert now._thread is not None
    now._thread.join(10)
    assert not now._thread.is_alive()
