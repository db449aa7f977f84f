"""One stack of a study, trained by this process: from its checkpoint, if there is one, to the records of its runs.

Knows a stack's folder and nothing of the study around it, so that any process on any machine can do it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from aol.engine.files import DamagedCheckpointError, load_checkpoint, save_checkpoint
from aol.engine.loop import Loop
from aol.engine.settings import Settings
from aol.engine.source import AnyPair
from aol.engine.training import Conduct, loop_for
from aol.study.recording import records_of
from aol.study.records import Record


class TooLargeError(RuntimeError):
    """These runs do not fit into memory together."""


class Watch(Protocol):
    """Who is told how a stack goes, and says when to stop."""

    def say(self, text: str) -> None:
        """Hear a sentence."""

    def begin(self, loop: Loop) -> None:
        """Hear that the stack begins, or goes on."""

    def epoch(self, loop: Loop) -> None:
        """Hear that an epoch is over."""

    def may_write(self) -> None:
        """Raise if these runs are another's by now."""

    def stop_before(self, seconds: float) -> bool:
        """Return whether to stop, if it would be that long until one is asked again."""


def train_stack(
    runs: Sequence[Settings],
    pairs: dict[str, AnyPair],
    conduct: Conduct,
    checkpoint: Path,
    watch: Watch,
    keep: tuple[str, ...] = (),
) -> list[Record] | None:
    """Train runs as one and return their records; None if it was stopped, with all of it in the checkpoint.

    Runs that do not fit into memory together are a `TooLargeError`.
    """
    try:
        return _train(runs, pairs, conduct, checkpoint, watch, keep)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        reason = str(error).splitlines()[0]
    gc.collect()  # not before the error is forgotten, which holds on to all that was made
    if conduct.device.type == "cuda":
        torch.cuda.empty_cache()
    raise TooLargeError(reason)


def _train(
    runs: Sequence[Settings],
    pairs: dict[str, AnyPair],
    conduct: Conduct,
    checkpoint: Path,
    watch: Watch,
    keep: tuple[str, ...],
) -> list[Record] | None:
    loop = _resumed(runs, pairs, conduct, checkpoint, watch)
    watch.begin(loop)
    saved, save_seconds = time.monotonic(), 0.0
    while not loop.done:
        start = time.monotonic()
        loop.run_epoch()
        watch.epoch(loop)
        stop = not loop.done and watch.stop_before(1.25 * (time.monotonic() - start) + save_seconds)
        if stop or (not loop.done and time.monotonic() - saved >= conduct.checkpoint_seconds):
            watch.may_write()
            start = time.monotonic()
            save_checkpoint(checkpoint, loop.state_dict())
            saved = time.monotonic()
            save_seconds = saved - start
        if stop:
            return None
    return records_of(loop, keep)


def _resumed(
    runs: Sequence[Settings], pairs: dict[str, AnyPair], conduct: Conduct, checkpoint: Path, watch: Watch
) -> Loop:
    """Return the loop where its checkpoint left it; from the start where that cannot be used."""
    loop = loop_for(runs, pairs, conduct)
    if not checkpoint.exists():
        return loop
    try:
        loop.load_state_dict(load_checkpoint(checkpoint))
    except (DamagedCheckpointError, ValueError, TypeError, KeyError, RuntimeError) as error:
        if _out_of_memory(error):
            raise
        watch.say(f"{len(runs)} runs start again, as their checkpoint cannot be used: {str(error).splitlines()[0]}")
        checkpoint.unlink()
        return loop_for(runs, pairs, conduct)
    return loop


def _out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is used up; on a CPU it is an ordinary one with words to that effect."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)
