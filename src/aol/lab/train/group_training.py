"""Train one group of runs as one network, with checkpoints: the only place that drives a training loop."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from aol import _distributed
from aol.lab.engine.device import one_thread
from aol.lab.engine.loop import Loop
from aol.lab.engine.source import AnyPair, data_of
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.from_loop import write_records
from aol.lab.train.groups import ExecutionOptions, RunGroup, Stop, is_small, load_checkpoint, save_checkpoint
from aol.lab.train.progress import Silent, describe, imbalance_note
from aol.records.store import Store

_SHARE_OF_TIME = 0.05  # that writing checkpoints and records may take


@dataclass
class Context:
    """What groups of runs are trained with.

    `keep` names the readings by class to keep of every epoch (None: all). Results must not be split over two folders:
    `check_place` raises if that of the store was moved or deleted since.
    """

    store: Store
    pairs: Mapping[str, AnyPair]
    options: ExecutionOptions
    progress: Silent
    keep: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._known = self.store.folder.stat()

    def check_place(self) -> None:
        """Raise if the folder was moved or deleted."""
        with contextlib.suppress(OSError):
            if os.path.samestat(self.store.folder.stat(), self._known):
                return
        raise RuntimeError(
            f"{self.store.folder} was moved or deleted while runs were trained into it: training has stopped. "
            "`aol resume` continues from the last checkpoint in the folder where it is now."
        )


def make_loop(runs: Sequence[Settings], pairs: Mapping[str, AnyPair], options: ExecutionOptions) -> Loop:
    """Return the loop that trains a group, before its first epoch."""
    data = data_of(runs[0], pairs)
    return Loop(runs, data, device=options.device, workers=options.workers, keep_samples=options.keep_samples)


def train_group(group: RunGroup, context: Context, stop: Stop) -> bool:
    """Train runs as one network and write their records; False if it was stopped, with its state in the checkpoint.

    Of several processes that train one network, the first writes.
    """
    options, progress, pairs = context.options, context.progress, context.pairs
    writes = _distributed.world()[0] == 0
    saved, saving = time.monotonic(), 0.0

    def save(finished: bool) -> None:
        context.check_place()
        if not finished:
            save_checkpoint(group.checkpoint, loop.state_dict())
        pair = data_of(group.runs[0], pairs)
        write_records(loop, pair, context.store, options, finished=finished, keep=context.keep)

    with (
        one_thread(options.device.type == "cpu" and is_small(group.runs[0], pairs)),
        contextlib.closing(_resumed(group, context)) as loop,
    ):
        progress.begin(loop.runs, loop.epoch, describe(loop))
        loop.on_batch = partial(progress.within, loop, stop)
        while not loop.done:
            start = time.monotonic()
            loop.run_epoch()
            progress.reach(loop.runs, loop.epoch, describe(loop))
            stopping = not loop.done and stop.before(1.25 * (time.monotonic() - start) + saving)
            pause = max(options.checkpoint_seconds, saving / _SHARE_OF_TIME) if options.checkpoint_seconds else 0.0
            if writes and not loop.done and (stopping or time.monotonic() - saved >= pause):
                start = time.monotonic()
                save(False)
                saved = time.monotonic()
                saving = saved - start
            if stopping:
                return False
        if writes:
            save(True)
    return True


def _resumed(group: RunGroup, context: Context) -> Loop:
    """Return the loop where its checkpoint left it; from the start where that cannot be used."""
    loop = make_loop(group.runs, context.pairs, context.options)
    if text := imbalance_note(loop):
        context.progress.say_once(text)
    if not group.checkpoint.exists():
        return loop
    try:
        state = load_checkpoint(group.checkpoint)
        if state.get("keep_samples") != loop.keep_samples:
            raise WrongSettingsError("These runs were begun with the other choice of --keep-samples: repeat it.")
        loop.load_state_dict(state)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:  # damaged, or of another version
        if isinstance(error, WrongSettingsError) or is_out_of_memory(error):
            raise
        why = str(error).splitlines()[0]
        context.progress.say(f"{len(group.runs)} runs start again from the first epoch: {why}.")
        return make_loop(group.runs, context.pairs, context.options)
    context.progress.say(f"Continuing {len(loop.runs)} runs after epoch {loop.epoch}.")
    return loop


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is used up; on a CPU it is a plain RuntimeError that says so."""
    plain = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return plain or isinstance(error, MemoryError | torch.OutOfMemoryError)
