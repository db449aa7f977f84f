"""Processes that answer requests. Large answers come through memory that they share with this process.

A tensor that is sent from one process to another costs a file descriptor and a connection, about a millisecond. Here
memory is mapped once, before the processes start, and each answer has a slot in it. On CUDA this memory is pinned.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import torch
from torch import Tensor

from aol.lab.data.errors import DataError

Requests: TypeAlias = Sequence[Any]
# Returns a named tuple of tensors, of which the first may be large.
Answer: TypeAlias = Callable[[Requests], Any]
_AHEAD = 2  # requests under way for each process
_MOST = 2**30  # bytes of shared memory, of each lane


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_share(processes: int) -> int:
    """Return how many cores each of so many processes has that one launcher has started, this one included.

    They divide the cores of the launcher, which is the parent process. If it has given each of them cores of its own,
    these are the share already.
    """
    own = together = cores()
    with suppress(OSError, AttributeError):  # the parent has ended; another system than Linux
        together = max(own, len(os.sched_getaffinity(os.getppid())))
    return max(1, min(own, together // processes))


class Workers:
    """Processes that answer lists of requests.

    Args:
        answer: called in a worker with a list of requests.
        workers: how many processes; with none, and elsewhere than on Linux, answers are computed here, when needed.
        together: the most answers that are in use at once, of a lane.
        slot: bytes of an answer that fit into shared memory; a larger one is sent, which takes longer.
        pin: pin the shared memory, for quicker copies to a CUDA device.
        lanes: users that ask side by side, each with slots of its own, so that none waits for another.
        threads: elsewhere than on Linux, use threads of this process, for answers that release the interpreter's lock.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        workers: int,
        together: int,
        slot: int,
        pin: bool,
        lanes: int = 1,
        threads: bool = False,
    ) -> None:
        self._pool: Executor | None = None
        self._alive: tuple[int, ...] = ()
        slots = _AHEAD * workers + together
        if not workers or sys.platform != "linux":  # elsewhere, processes with threads are not safely forked
            self._pool = ThreadPoolExecutor(workers) if workers and threads else None
            self.lanes = [Lane(answer, self._pool, slots) for _ in range(lanes)]
            return
        slot = min(slot, _MOST // slots) // mmap.PAGESIZE * mmap.PAGESIZE + mmap.PAGESIZE
        # Anonymous: not limited by the size of /dev/shm.
        memory = torch.frombuffer(mmap.mmap(-1, lanes * slots * slot), dtype=torch.uint8).view(lanes, slots, slot)
        self._alive = alive = os.pipe()  # has an end when this process has
        given = (answer, memory, os.getpid(), alive)
        self._pool = ProcessPoolExecutor(workers, get_context("fork"), _begin, given)
        self.lanes = [Lane(answer, self._pool, slots, number, memory[number], pin=pin) for number in range(lanes)]
        try:
            with _explained(workers):
                with _uninterrupted():
                    first = self._pool.submit(os.getpid)
                first.result()  # all of them have started
        except BaseException:
            self.close()  # those that have: this process would wait for them at its end
            raise

    def close(self) -> None:
        """End the processes; what is under way is waited for."""
        if self._pool is None:
            return
        self._pool.shutdown(cancel_futures=True)
        self._pool = None
        for each in self._alive:
            os.close(each)
        for lane in self.lanes:
            lane.close()


class Lane:
    """Asks workers, and has slots, of the shared memory if they are processes, for their answers."""

    def __init__(
        self,
        answer: Answer,
        pool: Executor | None = None,
        slots: int = 0,
        number: int = 0,
        memory: Tensor | None = None,
        *,
        pin: bool = False,
    ) -> None:
        self._answer, self._pool, self._number, self._memory = answer, pool, number, memory
        self._pins, self._pinned = pin, False
        self._free: SimpleQueue[int] = SimpleQueue()
        for slot in range(slots):
            self._free.put(slot)

    def answers(self, requests: Iterable[Requests]) -> Generator[Asked]:
        """Yield what is asked for, in order, asking ahead as far as there are slots; the caller releases each."""
        asked, left = deque[Asked](), iter(requests)
        following = next(left, None)
        try:
            while following is not None or asked:
                while following is not None and (one := self._ask(following, wait=not asked)) is not None:
                    asked.append(one)
                    following = next(left, None)
                yield asked.popleft()
        finally:
            for one in asked:
                one.release()

    def _ask(self, requests: Requests, *, wait: bool) -> Asked | None:
        """Ask for something; None where no slot is free and `wait` is False."""
        if self._pool is None:
            return Asked(lambda: self._answer(requests)) if wait else None
        if self._memory is not None and self._pins and not self._pinned:
            # Not before the processes start: they need it as it is.
            self._pinned = _pin(self._memory)
        try:
            slot = self._free.get(block=wait)
        except Empty:
            return None
        if self._memory is None:  # of a thread
            future = self._pool.submit(self._answer, requests)
            return Asked(future.result, future, lambda: self._free.put(slot))
        with _explained():
            future = self._pool.submit(_serve, (self._number, slot), requests)
        memory = self._memory[slot]
        return Asked(lambda: _received(future.result(), memory), future, lambda: self._free.put(slot))

    def close(self) -> None:
        """Let the memory go."""
        if self._pinned and self._memory is not None:
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())  # type: ignore[no-untyped-call]
        self._pinned = self._pins = False


class Asked:
    """An answer that is under way; its slot is used again once it is released."""

    def __init__(
        self, answer: Callable[[], Any], future: Future[Any] | None = None, released: Callable[[], None] = lambda: None
    ) -> None:
        self._answer, self._future, self._released = answer, future, released

    def get(self) -> Any:
        """Wait for the answer and return it; a `DataError` is raised."""
        with _explained():
            return self._answer()

    def release(self) -> None:
        """Give the slot back, when nothing writes to it any more; the answer must not be read after this."""
        if self._future is not None:
            self._future.cancel()
            self._future.add_done_callback(lambda _: self._released())


@contextmanager
def _explained(starting: int = 0) -> Iterator[None]:
    """Say what to do where a process was killed or, of those that are `starting`, one could not be started."""
    try:
        yield
    except DataError as error:
        raise error from None  # without the traceback of the worker
    except BrokenProcessPool:
        raise RuntimeError("A worker process was killed, perhaps for want of memory; try fewer workers.") from None
    except OSError as error:
        if not starting:
            raise
        raise OSError(error.errno, f"{starting} worker processes could not be started, try fewer") from error


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait; processes that start meanwhile are not ended by it before they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pin(memory: Tensor) -> bool:
    """Pin memory that is there, for quicker copies; return whether that was possible."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)) == 0


# In a worker

_here: list[Any] = []  # the function that answers, and the shared memory


def _begin(answer: Answer, memory: Tensor, parent: int, alive: tuple[int, int]) -> None:
    gc.freeze()  # never collect what is inherited: the processes of others are not this one's to end
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    os.close(alive[1])
    threading.Thread(target=_end_with, args=(parent, alive[0]), daemon=True).start()
    _here[:] = [answer, memory]


def _end_with(parent: int, alive: int) -> None:
    """End this process after its parent, which may have been killed: it would hold files that the parent had locked."""
    while os.getppid() == parent and not connection.wait([alive], 2):
        pass
    os._exit(1)


def _serve(place: tuple[int, int], requests: Requests) -> Any:
    """Answer requests; a large tensor goes into a slot, and only its shape is returned."""
    answer, memory = _here
    found = answer(requests)
    large, *small = found
    slot, rest = memory[place], [each.numpy() for each in small]
    if large.dtype != torch.uint8 or large.numel() > len(slot):
        return type(found), large.numpy(), rest
    slot[: large.numel()] = large.reshape(-1)
    return type(found), tuple(large.shape), rest


def _received(message: Any, slot: Tensor) -> Any:
    """Return the answer of `_serve`."""
    kind, large, rest = message
    inside = isinstance(large, tuple)
    first = slot[: torch.Size(large).numel()].view(large) if inside else torch.from_numpy(large)
    return kind(first, *(torch.from_numpy(each) for each in rest))
