"""Train one group of runs as one network, with checkpoints: the only place that drives a training loop."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from aol.lab.engine.device import one_thread
from aol.lab.engine.loop import Loop
from aol.lab.engine.offline import OfflineLoop
from aol.lab.engine.source import AnyPair, data_of
from aol.lab.engine.stream import StreamLoop
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.groups import ExecutionOptions, is_small, load_checkpoint, save_checkpoint

_SHARE_OF_TIME = 0.05  # that writing checkpoints and records may take


class GroupTooLargeError(RuntimeError):
    """These runs do not fit into memory together."""


class Watch(Protocol):
    """Who is told how a group progresses, and says when to stop."""

    def say(self, text: str) -> None:
        """Take a sentence."""

    def begin(self, loop: Loop) -> None:
        """Take the loop before its first epoch here."""

    def epoch(self, loop: Loop) -> None:
        """Take the loop after each epoch."""

    def batch(self, loop: Loop) -> None:
        """Take the loop after each batch within an epoch; readings on the device are not ready."""

    def stop_before(self, seconds: float) -> bool:
        """Return whether to stop, if it would be that long until the next question."""


def make_loop(runs: Sequence[Settings], pairs: dict[str, AnyPair], options: ExecutionOptions) -> Loop:
    """Return the loop that trains a group, before its first epoch."""
    kind = StreamLoop if runs[0].scenario == "stream" else OfflineLoop
    return kind(
        runs,
        data_of(runs[0], pairs),
        device=options.device,
        workers=options.workers,
        keep_samples=options.keep_samples,
    )


def train_group(
    runs: Sequence[Settings],
    pairs: dict[str, AnyPair],
    options: ExecutionOptions,
    checkpoint: Path,
    watch: Watch,
    save: Callable[[Loop, bool], None] | None = None,
) -> Loop | None:
    """Train runs as one network and return the finished loop; None if it was stopped, with its state in the checkpoint.

    `save(loop, finished)` is called with every checkpoint and at the end. Under DDP only the process that has `save`
    writes. `GroupTooLargeError` if the runs do not fit into memory together.
    """
    try:
        with one_thread(options.device.type == "cpu" and is_small(runs[0], pairs)):
            return _train_group(runs, pairs, options, checkpoint, watch, save)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0]
    gc.collect()  # only now: the error held references to everything that was allocated
    if options.device.type == "cuda":
        torch.cuda.empty_cache()
    raise GroupTooLargeError(reason)


def _train_group(
    runs: Sequence[Settings],
    pairs: dict[str, AnyPair],
    options: ExecutionOptions,
    checkpoint: Path,
    watch: Watch,
    save: Callable[[Loop, bool], None] | None,
) -> Loop | None:
    loop = _resumed(runs, pairs, options, checkpoint, watch)
    if loop.epoch:
        watch.say(f"Continuing {len(loop.runs)} runs after epoch {loop.epoch}.")
    watch.begin(loop)
    loop.on_batch = lambda: watch.batch(loop)
    saved, saving = time.monotonic(), 0.0
    while not loop.done:
        start = time.monotonic()
        loop.run_epoch()
        watch.epoch(loop)
        stop = not loop.done and watch.stop_before(1.25 * (time.monotonic() - start) + saving)
        rest = max(options.checkpoint_seconds, saving / _SHARE_OF_TIME) if options.checkpoint_seconds else 0.0
        due = time.monotonic() - saved >= rest
        if save and not loop.done and (stop or due):
            start = time.monotonic()
            save_checkpoint(checkpoint, loop.state_dict())
            save(loop, False)
            saved = time.monotonic()
            saving = saved - start
        if stop:
            loop.close()
            return None
    loop.close()
    if save:
        save(loop, True)
    return loop


def _resumed(
    runs: Sequence[Settings], pairs: dict[str, AnyPair], options: ExecutionOptions, checkpoint: Path, watch: Watch
) -> Loop:
    """Return the loop where its checkpoint left it; from the start where that cannot be used."""
    if not checkpoint.exists():
        return make_loop(runs, pairs, options)
    try:
        state = load_checkpoint(checkpoint)
        loop = make_loop(runs, pairs, options)
        if state.get("keep_samples") != loop.keep_samples:
            raise WrongSettingsError("These runs were begun with the other choice of --keep-samples: repeat it.")
        loop.load_state_dict(state)
    except WrongSettingsError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:  # damaged, or of other settings
        if _is_out_of_memory(error):
            raise
        kept = checkpoint.with_suffix(".damaged")
        watch.say(
            f"{len(runs)} runs start again from the first epoch: {str(error).splitlines()[0]}. "
            f"The checkpoint was renamed to {kept.name}."
        )
        os.replace(checkpoint, kept)
        return make_loop(runs, pairs, options)
    return loop


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is used up; on a CPU it is a plain RuntimeError that says so."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)
