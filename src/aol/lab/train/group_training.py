"""Train one group of runs as one network, with checkpoints: the only place that drives a training loop."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from aol import _distributed
from aol.lab import nets
from aol.lab.data.images import ImageSet
from aol.lab.engine.device import launched, one_thread
from aol.lab.engine.learner import make_network, network_name, step_bytes
from aol.lab.engine.loop import Loop
from aol.lab.engine.samples import pool
from aol.lab.engine.source import AnyPair, data_of, input_shape
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.folder import RunGroup, load_checkpoint, save_checkpoint
from aol.lab.train.from_loop import write_records
from aol.lab.train.progress import Silent, describe, imbalance_note
from aol.records.store import Store

_SHARE_OF_TIME = 0.05  # that writing checkpoints and records may take
_FEW_PIXELS, _SLOW_PIXELS = 256, 128  # of an image, and of its side
# Steps are captured for a full batch and for the last, smaller one, each with its own memory; evaluation batches have a
# fixed number of images whatever the number of runs.
_CAPTURES = 2.2
_USABLE = 0.9  # of the free memory of a GPU


@dataclass(frozen=True)
class ExecutionOptions:
    """How runs are trained: what makes no difference to the result, except for rounding."""

    device: torch.device
    together: int | None = None  # the most runs in a group; by default what suits the device
    workers: int | None = None  # processes that decode large images; by default one a core where the device is a GPU
    keep_samples: bool = False  # keep the answer to every sample at every epoch, and so its age
    checkpoint_seconds: float = 30.0  # the least time between two checkpoints; 0: one after every epoch
    minutes: float | None = None  # stop after this time; everything done so far is kept
    networks: bool = True  # keep the trained networks
    data_dir: str | None = None  # where the data sets were looked for


@dataclass
class Stop:
    """When to stop: after some seconds, or at SIGTERM or Ctrl-C; `signal` is which of them came."""

    limit: float | None = None
    signal: int = 0
    came: bool = False
    start: float = field(default_factory=time.monotonic)

    def before(self, seconds: float = 0.0) -> bool:
        """Return whether there is no time left for something that takes so long; all processes agree."""
        self.came = self.came or bool(self.signal) or self.left() < seconds
        if dist.is_initialized():
            wishes: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(wishes, (self.came, self.signal))
            self.came, self.signal = any(came for came, _ in wishes), max(number for _, number in wishes)
        return self.came

    def left(self) -> float:
        """Return the seconds that are left; infinity without a limit."""
        return math.inf if self.limit is None else self.start + self.limit - time.monotonic()

    @contextlib.contextmanager
    def on_signal(self) -> Iterator[None]:
        """Stop at the end of an epoch on SIGTERM, which schedulers send before they kill, and on the first Ctrl-C."""

        def ask(number: int, _frame: FrameType | None) -> None:
            if self.signal and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number

        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if main}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # as in the background of a shell
                signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def most_together(runs: Sequence[Settings], pair: AnyPair, options: ExecutionOptions) -> tuple[int, str | None]:
    """Return how many of some runs that are alike to train as one network; where they train alone, also why.

    Small images leave a core, or a GPU, idle between short operations.
    """
    run, shape = runs[0], input_shape(runs[0], pair)
    if launched()[1] > 1:
        return 1, "several processes share every batch"
    if not isinstance(pair.train, ImageSet):
        return 1, "large images are trained one run at a time"
    if reason := nets.obstacle(make_network(run, pair.num_classes, shape)):
        return 1, reason
    if options.together:
        return options.together, None
    if options.device.type == "cpu":
        return 1 if shape[1] * shape[2] > _FEW_PIXELS else 8 if run.batch_size <= 64 else 4, None
    # Memory grows linearly with the number of runs; the data set is shared by all.
    free = _USABLE * torch.cuda.mem_get_info(options.device)[0]
    fit = int(free / (_CAPTURES * max(1, step_bytes(run, shape, pair.num_classes, options.device))))
    return max(1, min(256 if network_name(run.net, shape) == "cnn" else 64, fit)), None


def is_small(run: Settings, pairs: Mapping[str, AnyPair]) -> bool:
    """Return whether a run is the small CNN on small images, whose operations are too short to be shared by threads."""
    shape = input_shape(run, pairs[run.data])
    return network_name(run.net, shape) == "cnn" and shape[1] * shape[2] <= _FEW_PIXELS


def check(runs: Sequence[Settings], pairs: Mapping[str, AnyPair], options: ExecutionOptions) -> str | None:
    """Raise what can be known to be wrong before anything is written or trained; return a warning."""
    warning = None
    if options.keep_samples and any(run.scenario == "stream" or run.signal == "none" for run in runs):
        raise WrongSettingsError(
            "--keep-samples keeps the ages of samples: a stream has ages of classes only, and signal='none' has none."
        )
    for run in {run.group_key: run for run in runs}.values():
        pair = pairs[run.data]
        if pair.num_classes < 2:
            raise WrongSettingsError(f"data={run.data!r} has a single class; at least two are needed.")
        shape, seen = input_shape(run, pair), data_of(run, pairs)
        pool(run, seen.train.labels, seen.shortcut)
        try:
            make_network(run, pair.num_classes, shape)
        except ValueError as error:
            name = f"net={network_name(run.net, shape)!r}"
            raise WrongSettingsError(f"{name} does not fit the images of {pair.name}: {error}.") from error
        if options.device.type == "cpu" and shape[1] >= _SLOW_PIXELS:
            text = f"images of {shape[1]} pixels train slowly on a CPU: add --image-size 64, or use a GPU."
            warning = f"Warning: {text}"
    return warning


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
        how: dict[str, Any] = {"networks": options.networks, "data_dir": options.data_dir, "keep": context.keep}
        write_records(loop, data_of(group.runs[0], pairs), context.store, finished=finished, **how)

    with (
        one_thread(options.device.type == "cpu" and is_small(group.runs[0], pairs)),
        contextlib.closing(_resumed(group, context)) as loop,
    ):
        progress.begin(loop.runs, loop.epoch, describe(loop))
        loop.on_batch = lambda part: progress.within(loop, bool(stop.signal), part)
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
