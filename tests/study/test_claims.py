"""Stacks held by processes here and elsewhere: the dead are succeeded, the living are not, a turn has one holder."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from aol.engine.settings import Settings
from aol.study import hosts
from aol.study.claims import Claims, Held, TakenOverError
from tests.support.running import status_of

RUNS = [Settings(seed=seed) for seed in range(6)]
ELSEWHERE = {"host": "elsewhere", "machine": "another", "pid": 7, "began": "1"}


def wanted(run: Settings) -> bool:
    return True


def abroad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what this process writes down look as if another machine had written it."""
    monkeypatch.setattr(hosts, "myself", lambda: dict(ELSEWHERE))


def only(claims: Claims) -> Held:
    (held,) = claims.look()
    return held


def test_a_run_belongs_to_one_stack_only(tmp_path: Path) -> None:
    with Claims(tmp_path) as one, Claims(tmp_path) as two:
        first = one.bind(RUNS[:4], wanted=wanted)
        assert two.bind(RUNS[3:], wanted=wanted) is None
        second = two.bind([RUNS[4], RUNS[3], RUNS[5]], wanted=wanted)
        assert first is not None
        assert second is not None
        assert first.runs == tuple(RUNS[:4])
        assert second.runs == tuple(RUNS[4:])
        assert one.bind(RUNS, wanted=wanted) is None
        assert one.bound() == {run.run_id: first.name for run in RUNS[:4]} | {
            run.run_id: second.name for run in RUNS[4:]
        }
        assert len(one.look()) == 2
        one.dissolve(first)
        assert two.bind(RUNS[:4], wanted=lambda run: run.seed != 2).runs == (RUNS[0], RUNS[1], RUNS[3])  # type: ignore[union-attr]


def test_many_that_bind_at_once_never_share_a_run(tmp_path: Path) -> None:
    runs = [Settings(seed=seed) for seed in range(60)]
    got: list[Settings] = []
    gate = threading.Barrier(8)

    def bind() -> None:
        gate.wait()
        stack = claims.bind(runs, wanted=wanted)
        if stack is not None:
            got.extend(stack.runs)

    with Claims(tmp_path) as claims:
        threads = [threading.Thread(target=bind) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(run.seed for run in got) == list(range(60))


def _held_by_another_process(folder: Path, *, then: str) -> int:
    child = os.fork()
    if not child:
        claims = Claims(folder)
        claims.bind(RUNS, wanted=wanted)
        if then == "stay":
            time.sleep(60)
        os._exit(0)
    return child


def test_a_process_of_this_machine_is_succeeded_the_moment_it_is_gone(tmp_path: Path) -> None:
    child = _held_by_another_process(tmp_path, then="stay")
    claims = Claims(tmp_path)
    while not claims.look() or not only(claims).stack.runs:
        time.sleep(0.005)
    assert only(claims).alive is True
    os.kill(child, signal.SIGKILL)
    while only(claims).alive:  # as a zombie it is gone too
        time.sleep(0.005)
    held = only(claims)
    assert held.alive is False
    assert claims.take_over(held)
    assert only(claims).alive is True
    assert held.stack.runs == tuple(RUNS)
    assert status_of(child) == -signal.SIGKILL
    claims.close()


def test_of_many_successors_there_is_one(tmp_path: Path) -> None:
    child = _held_by_another_process(tmp_path, then="die")
    assert status_of(child) == 0
    rivals = [Claims(tmp_path) for _ in range(5)]
    seen = [only(rival) for rival in rivals]
    assert [rival.take_over(held) for rival, held in zip(rivals, seen, strict=True)].count(True) == 1
    for rival in rivals:
        rival.close()


def test_a_process_elsewhere_is_dead_when_its_counter_has_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = Claims(tmp_path, beat_seconds=0.02), Claims(tmp_path, patience=0.4, beat_seconds=0.05)
    with monkeypatch.context() as patch:
        abroad(patch)
        assert there.bind(RUNS, wanted=wanted) is not None
    assert only(here).alive is None  # at first sight nobody can tell
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert only(here).alive is not False
        time.sleep(0.02)
    assert only(here).alive is True
    there._over.set()  # it is cut off: no sign of life any more, but nothing let go
    stopped = time.monotonic()
    while only(here).alive is not False:
        time.sleep(0.01)
    assert time.monotonic() - stopped >= 0.3
    held = only(here)
    assert (held.host, held.pid) == ("elsewhere", 7)
    assert here.take_over(held)
    here.close()


def test_one_that_was_taken_for_dead_notices_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep, successor = Claims(tmp_path, beat_seconds=1000), Claims(tmp_path, patience=0.0)
    with monkeypatch.context() as patch:
        abroad(patch)
        stack = asleep.bind(RUNS, wanted=wanted)
    assert stack is not None
    asleep.check(stack)
    only(successor)
    held = only(successor)
    assert held.alive is False
    assert successor.take_over(held)
    with pytest.raises(TakenOverError, match="Another process has taken over 6 runs"):
        asleep.check(stack)
    asleep.close()  # lets go of nothing that is not its own
    assert only(successor).alive is True
    successor.close()


def test_what_was_let_go_is_free_at_once_even_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        abroad(patch)
        with Claims(tmp_path) as there:
            assert there.bind(RUNS, wanted=wanted) is not None
    here = Claims(tmp_path)
    held = only(here)
    assert held.alive is False
    assert here.take_over(held)
    assert only(Claims(tmp_path)).alive is True  # what was let go was the turn before
    here.close()


def test_a_holder_that_died_half_way_is_waited_for_and_then_succeeded(tmp_path: Path) -> None:
    with Claims(tmp_path) as first:
        stack = first.bind(RUNS, wanted=wanted)
        assert stack is not None
    (stack.folder / "holder-2").touch()  # by a version that made it first, and wrote then
    here = Claims(tmp_path, patience=0.1)
    assert only(here).alive is None
    time.sleep(0.12)
    assert only(here).alive is False


def test_one_that_dies_while_it_takes_a_stack_leaves_it_free(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        hosts.myself = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment, return-value]
        Claims(tmp_path).bind(RUNS, wanted=wanted)
    assert status_of(child) == -signal.SIGKILL
    claims = Claims(tmp_path)
    held = only(claims)
    assert held.alive is False
    assert claims.take_over(held)
    claims.dissolve(held.stack)
    assert claims.look() == []
    claims.close()


def test_of_a_process_on_a_system_without_a_name_nobody_knows_whether_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "_machine", lambda: "")
    assert hosts.alive({**hosts.myself(), "began": "1"}) is None


def test_where_a_stack_stands_is_no_matter_once_another_has_finished_it(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        stack = claims.bind(RUNS, wanted=wanted)
        assert stack is not None
        claims.dissolve(stack)
        stack.note(3)
        assert not stack.folder.exists()
        with pytest.raises(TakenOverError):
            claims.check(stack)


def test_a_tie_to_a_stack_that_is_gone_is_undone(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        stack = claims.bind(RUNS, wanted=wanted)
        assert stack is not None
        os.symlink("gone", tmp_path / "work" / "bound" / "0123456789ab")
        claims.tidy()
        assert set(claims.bound()) == {run.run_id for run in RUNS}


def test_a_stack_remembers_what_is_to_be_kept_and_how_far_it_is(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        stack = claims.bind(RUNS[:1], ("age",), wanted=wanted)
        assert stack is not None
        assert stack.stand() == 0
        stack.note(17)
        assert only(Claims(tmp_path)).stack == stack
        assert only(Claims(tmp_path)).stack.stand() == 17
        assert json.loads((stack.folder / "epoch").read_text())["pid"] == os.getpid()
