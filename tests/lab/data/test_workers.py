"""Answers of worker processes: in order, exact, through slots that are used again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from aol.lab.data.errors import DataError
from aol.lab.data.workers import Workers
from tests.support.running import PATIENCE

BYTES = 6000


class Found(NamedTuple):
    content: Tensor
    table: Tensor


def answer(requests: Sequence[int]) -> Found:
    """As many bytes as the first request says, of the value of the last."""
    if requests[0] < 0:
        raise DataError(f"no image {requests[0]}")
    content = torch.full((requests[0],), requests[-1] % 256, dtype=torch.uint8)
    return Found(content, torch.tensor(requests))


def pool(workers: int, lanes: int = 1) -> Workers:
    return Workers(answer, workers=workers, together=3, slot=BYTES, pin=False, lanes=lanes)


@pytest.mark.parametrize("workers", [0, 2])
def test_answers_come_in_order_and_whole_whatever_their_size(workers: int) -> None:
    workers_ = pool(workers)
    asked = [(size, value) for value, size in enumerate([10, BYTES, 50_000, 0, 1] * 8)]  # the third fits into no slot
    kept = []
    for (size, value), one in zip(asked, workers_.lanes[0].answers(asked), strict=True):
        found = one.get()
        assert isinstance(found, Found)
        assert found.table.tolist() == [size, value]
        kept.append((found.content, value, one))
        if len(kept) == 3:  # as many as may be in use at once
            for content, wanted, each in kept:
                assert bool((content == wanted).all())
                each.release()
            kept.clear()
    workers_.close()


def test_a_slot_is_not_written_to_before_it_is_released() -> None:
    workers = pool(1)
    answers = workers.lanes[0].answers([(100, value) for value in range(40)])
    held = [next(answers) for _ in range(3)]
    contents = [one.get().content for one in held]
    assert next(answers).get().table.tolist() == [100, 3]  # all slots are in use by now, or have been asked for
    time.sleep(0.05)
    for value, content in enumerate(contents):
        assert bool((content == value).all())
    answers.close()
    workers.close()


def test_lanes_do_not_wait_for_one_another() -> None:
    workers = pool(1, lanes=2)
    first = workers.lanes[0].answers([(1, 1)] * 100)
    held = [next(first) for _ in range(5)]  # all slots of the first lane
    assert len(held) == 5
    for one in workers.lanes[1].answers([(2, 2)] * 20):
        assert one.get().table.tolist() == [2, 2]
        one.release()
    first.close()
    workers.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_wrong_with_the_data_is_raised_here(workers: int) -> None:
    given = pool(workers)
    first, second = given.lanes[0].answers([(5, 1), (-7,)])
    assert first.get().content.tolist() == [1] * 5
    with pytest.raises(DataError, match="no image -7") as caught:
        second.get()
    assert caught.value.__cause__ is None  # no traceback of the worker
    given.close()


def test_slots_of_answers_that_nobody_waits_for_are_used_again() -> None:
    workers = pool(1)
    for _ in range(10):  # of five slots each time
        answers = workers.lanes[0].answers([(100, 1)] * 30)
        next(answers).release()
        answers.close()
    for one in workers.lanes[0].answers([(100, 9)] * 30):
        assert one.get().content.tolist() == [9] * 100
        one.release()
    workers.close()


def test_a_killed_worker_is_said_to_be_one_and_others_can_be_started() -> None:
    workers = pool(2)
    assert workers._pool is not None
    os.kill(next(iter(workers._pool._processes)), signal.SIGKILL)

    def ask_all() -> None:
        for one in workers.lanes[0].answers([(100, 1)] * 1000):
            one.get()
            one.release()

    for _ in range(2):  # when it is noticed, and later
        with pytest.raises(RuntimeError, match="A worker process was killed, perhaps for want of memory"):
            ask_all()
    workers.close()
    others = pool(2)
    assert [one.get().content.tolist() for one in others.lanes[0].answers([(2, 7)])] == [[7, 7]]
    others.close()


def test_a_program_ends_where_some_of_its_workers_cannot_be_started() -> None:
    program = (
        "import os\n"
        "from tests.lab.data.test_workers import pool\n"
        "fork, left = os.fork, [1, 2]\n"
        "def limited():\n"
        "    if not left: raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "    left.pop()\n"
        "    return fork()\n"
        "os.fork = limited\n"
        "try: pool(4)\n"
        "except OSError as error: print(error, flush=True)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.stdout.endswith("4 worker processes could not be started, try fewer\n")
    assert ran.returncode == 0


def test_answers_are_computed_here_where_processes_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    workers = pool(2)
    assert workers._pool is None
    assert [one.get().content.tolist() for one in workers.lanes[0].answers([(1, 3), (2, 7)])] == [[3], [7, 7]]
    workers.close()


def test_threads_answer_in_order_where_processes_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    barrier = threading.Barrier(2)

    def together(requests: Sequence[int]) -> Found:
        barrier.wait(PATIENCE)  # ends only where two answer at the same time
        return answer(requests)

    workers = Workers(together, workers=2, together=1, slot=0, pin=False, threads=True)
    found = []
    for one in workers.lanes[0].answers([(1, value) for value in range(20)]):
        found += one.get().content.tolist()
        one.release()
    workers.close()
    assert found == list(range(20))


def test_ctrl_c_ends_no_worker_that_is_just_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = BaseProcess._bootstrap  # type: ignore[attr-defined]

    def interrupted(process: BaseProcess, **more: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return begin(process, **more)

    monkeypatch.setattr(BaseProcess, "_bootstrap", interrupted)
    workers = pool(2)
    assert [one.get().table.tolist() for one in workers.lanes[0].answers([(1, 5), (1, 6)])] == [[1, 5], [1, 6]]
    workers.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_workers_end_after_a_parent_that_was_killed() -> None:
    program = (
        "import os, time\n"
        "from tests.lab.data.test_workers import pool\n"
        "workers = pool(2)\n"
        "print(*workers._pool._processes, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert parent.stdout is not None
    numbers = [int(word) for word in parent.stdout.readline().split()]
    assert len(numbers) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + PATIENCE
    while any(_runs(number) for number in numbers):
        assert time.monotonic() < end
        time.sleep(0.2)


def _runs(number: int) -> bool:
    """Whether a process runs: one that has ended and that nobody has asked about still has a number."""
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
