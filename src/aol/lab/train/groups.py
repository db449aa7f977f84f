"""Which runs are trained as one network, when to stop, and the folder and checkpoint of such a group."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from aol._files import read_json, write_atomically
from aol.lab import nets
from aol.lab.data.images import ImageSet
from aol.lab.engine.device import launched
from aol.lab.engine.learner import make_network, network_name, step_bytes
from aol.lab.engine.samples import pool
from aol.lab.engine.source import AnyPair, data_of, input_shape
from aol.lab.settings import Settings, WrongSettingsError
from aol.records.store import Store

CHECKPOINT_FORMAT = 7
_FEW_PIXELS, _SLOW_PIXELS = 256, 128  # of an image, and of its side
_DIGEST = hashlib.sha256().digest_size
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


@dataclass(frozen=True)
class RunGroup:
    """Runs that are trained as one network, and the folder in which they are while they train."""

    runs: tuple[Settings, ...]
    folder: Path

    @property
    def checkpoint(self) -> Path:
        """The file with everything that is needed to continue."""
        return self.folder / "checkpoint.pt"

    @property
    def ids(self) -> set[str]:
        """The ids of the runs."""
        return {run.run_id for run in self.runs}


def new_group(runs: Sequence[Settings], store: Store) -> RunGroup:
    """Return the group of some runs; its name follows from theirs."""
    name = hashlib.sha256(" ".join(run.run_id for run in runs).encode()).hexdigest()[:12]
    return RunGroup(tuple(runs), store.folder / "work" / name)


def begun_groups(store: Store) -> list[RunGroup]:
    """Return the groups that were begun in a folder; without runs where a process was killed as it noted them."""
    begun = []
    for folder in sorted((store.folder / "work").glob("*")):
        runs: tuple[Settings, ...] = ()
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            runs = tuple(Settings(**run) for run in read_json(folder / "group.json")["runs"])
        begun.append(RunGroup(runs, folder))
    return begun


def remove_group(folder: Path) -> None:
    """Remove the folder of a group."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # unless there are others


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


# Checkpoints


def save_checkpoint(path: Path, state: Mapping[str, object]) -> None:
    """Write tensors and primitives as a checkpoint, with a checksum behind them."""
    buffer = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **state}, buffer)
    content = buffer.getvalue()
    write_atomically(path, content + hashlib.sha256(content).digest())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it is ever executed. ValueError if it cannot be used."""
    content = path.read_bytes()
    content, checksum = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(content).digest() != checksum:
        raise ValueError(f"{path} is damaged: its checksum does not match its content")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        written = state["format"]
    except Exception as error:  # whatever torch raises of a file that it has not written
        raise ValueError(f"{path} is damaged: it is not a checkpoint of tensors and primitives") from error
    if written != CHECKPOINT_FORMAT:
        raise ValueError(f"{path} was written by another version of aol")
    return state
