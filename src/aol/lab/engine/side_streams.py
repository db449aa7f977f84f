"""CUDA streams beside that of the training step: what is made on them, and how long the step waits for it.

On other devices there are no streams; everything here then does nothing but keep the time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from aol.lab.data.workers import Asked


class SideStreams:
    """Two streams, to decode and to make batches, and what they still read.

    Decoders use a stream of their own, and do not wait for what still reads memory that is given to them. They
    therefore get memory from a pool of their own (that of the stream `decoding`), to which it returns when
    all that reads it is done. The streams are kept: new ones would begin with empty pools.
    """

    def __init__(self, device: torch.device) -> None:
        self._streams: list[torch.cuda.Stream] = []
        self._device = device
        if device.type == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            # A higher priority: its few short kernels are soon done, and the step never waits for them.
            self._streams = [torch.cuda.Stream(device, priority) for priority in (0, -1)]  # type: ignore[no-untyped-call]
        self._reading: list[Tensor | Asked] = []
        self._held: deque[tuple[list[Tensor | Asked], torch.cuda.Event | None]] = deque()

    def enter_thread(self) -> None:
        """Let this thread use the device of the thread that made this."""
        if self._streams:
            torch.cuda.set_device(self._device)

    def decoding(self) -> AbstractContextManager[Any]:
        """Return a context for decoders."""
        return torch.cuda.stream(self._streams[0]) if self._streams else nullcontext()

    def making(self) -> AbstractContextManager[Any]:
        """Return a context for copies and kernels that follow what was decoded."""
        if not self._streams:
            return nullcontext()
        self._streams[1].wait_stream(self._streams[0])
        return torch.cuda.stream(self._streams[1])

    def reads(self, things: Iterable[Tensor | Asked]) -> None:
        """Keep what the work that follows reads, until `made` and longer."""
        self._reading.extend(things)

    def made(self) -> torch.cuda.Event | None:
        """Return when the work so far will be done; what earlier work has read is given back."""
        event = None
        if self._streams:
            with self.making():
                event = _event()
        self._held.append((self._reading, event))
        self._reading = []
        while len(self._held) > (1 if self._streams else 0):
            self._give_back()
        return event

    def _give_back(self) -> None:
        things, event = self._held.popleft()
        if event is not None:
            event.synchronize()
        for each in things:
            if isinstance(each, Asked):
                each.release()

    def __enter__(self) -> SideStreams:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for all that is read."""
        self.made()
        while self._held:
            self._give_back()


class WaitTimer:
    """Times how long the device waits for batches, and keeps the host at most two batches ahead of it.

    On CUDA by events around each step: a stream that has nothing left to do passes the next event at once. Elsewhere
    the time in which the host fetches.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds, self._since = 0.0, time.perf_counter()
        self._by_events = device.type == "cuda"
        self._gaps: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self.issued()

    def fetched(self, images: Tensor, ready: torch.cuda.Event | None) -> Tensor:
        """Let the next step wait for a batch that is made beside it, and return the batch."""
        if ready is None:
            self._seconds += time.perf_counter() - self._since
        else:
            step = torch.cuda.current_stream()
            step.wait_event(ready)
            images.record_stream(step)
            self._gaps.append((self._last, _event()))
        return images

    def issued(self) -> None:
        """Note that a step was issued."""
        if not self._by_events:
            self._since = time.perf_counter()
            return
        self._last = _event()
        while len(self._gaps) > 2:
            self._collect()

    def _collect(self) -> None:
        before, after = self._gaps.popleft()
        after.synchronize()
        self._seconds += before.elapsed_time(after) / 1000

    def seconds(self) -> float:
        """Return the seconds of waiting."""
        while self._gaps:
            self._collect()
        return self._seconds


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
