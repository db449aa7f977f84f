"""When a study stops before it is done: its time is up, or the system asks for it."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType


@dataclass
class Stop:
    """When to stop: after so many seconds, or because the system asks for it."""

    limit: float | None = None
    asked: threading.Event = field(default_factory=threading.Event)
    came: bool = False  # whether it was time, at some point
    _start: float = field(default_factory=time.monotonic)

    def before(self, seconds: float) -> bool:
        """Return whether there is no time left for something that takes so long."""
        self.came = self.came or self.asked.is_set() or self.left() < seconds
        return self.came

    def left(self) -> float:
        """Return the seconds that are left, infinitely many if there is no limit."""
        return math.inf if self.limit is None else self.limit - (time.monotonic() - self._start)

    @contextlib.contextmanager
    def on_signal(self) -> Iterator[None]:
        """Stop cleanly when the process is asked to end (SIGTERM), as schedulers do before they kill."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(_number: int, _frame: FrameType | None) -> None:
            self.asked.set()

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
