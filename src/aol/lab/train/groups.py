"""Which runs are trained as one network, where, and in which share; and the checkpoint of a group."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from aol._checkpoint import DamagedCheckpointError, load_tensors
from aol._files import read_json, write_atomically
from aol.lab import nets
from aol.lab.data.images import ImageSet
from aol.lab.engine.device import launched
from aol.lab.engine.learner import make_network, network_name, runs_that_fit, step_bytes
from aol.lab.engine.samples import pool
from aol.lab.engine.source import AnyPair, data_of, input_shape
from aol.lab.settings import Settings, WrongSettingsError, groups
from aol.lab.train.loggers import check_loggers
from aol.lab.train.progress import Silent
from aol.records.store import Store

CHECKPOINT_FORMAT = 4
_FEW_PIXELS = 256


@dataclass(frozen=True)
class ExecutionOptions:
    """How runs are trained: what makes no difference to the result, except for rounding.

    Args:
        device: where to train.
        together: the most runs in a group; by default what suits the device.
        stacking: "grouped": runs as one network where their network allows it; "alone": one after the other.
        workers: processes that decode images of a large data set; by default one a core where the device is a GPU.
        keep_samples: keep the answer to every sample at every epoch, and so its age.
        checkpoint_seconds: the least time between two checkpoints; 0: one after every epoch.
        parallel: what processes started by torchrun share: every batch ("data") or the list of "runs". Sharing batches
            equals one process up to rounding, except that batch norm sees each process's own share, as in DDP.
        shares: (i, n) each: train only the i-th of n fixed shares of the runs, counted from one; none: all runs.
        minutes: stop after this time; everything done so far is kept. Groups that are complete in time come first.
        networks: keep the trained networks.
        log: names of loggers: tensorboard, wandb, mlflow.
        data_dir: where the data sets were looked for.
    """

    device: torch.device
    together: int | None = None
    stacking: str = "grouped"
    workers: int | None = None
    keep_samples: bool = False
    checkpoint_seconds: float = 30.0
    parallel: str = "data"
    shares: tuple[tuple[int, int], ...] = ()
    minutes: float | None = None
    networks: bool = True
    log: tuple[str, ...] = ()
    data_dir: str | None = None


def shares_of(options: ExecutionOptions) -> tuple[tuple[int, int], ...]:
    """Return which shares of the runs are this process's, (i, n) each, counted from one; none: all."""
    rank, world = launched()
    return options.shares or (((rank + 1, world),) if world > 1 and options.parallel == "runs" else ())


def lock_name(share: tuple[int, int], asked: Sequence[Settings], options: ExecutionOptions) -> str:
    """Return the name of a share's lock: "I-of-N", and which division of which runs it is a share of.

    Shares of another division could have runs in common; `aol._files.locked` refuses them while this one is held.
    """
    words = (str(options.together), *(run.run_id for run in asked))
    return f"{share[0]}-of-{share[1]}-{hashlib.sha256(' '.join(words).encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class RunGroup:
    """Runs that are trained as one network, and the folder in which they are while they train."""

    runs: tuple[Settings, ...]
    folder: Path

    @property
    def checkpoint(self) -> Path:
        """The file with everything that is needed to continue."""
        return self.folder / "checkpoint.pt"


def new_group(runs: Sequence[Settings], store: Store) -> RunGroup:
    """Return the group of some runs; its name follows from theirs."""
    name = hashlib.sha256(" ".join(run.run_id for run in runs).encode()).hexdigest()[:12]
    return RunGroup(tuple(runs), store.folder / "work" / name)


def begun_groups(store: Store) -> list[RunGroup]:
    """Return the groups that were begun in a folder."""
    found = []
    for path in sorted((store.folder / "work").glob("*/group.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            runs = tuple(Settings.of(each) for each in read_json(path)["runs"])
            found.append(RunGroup(runs, path.parent))
    return found


def remove_leftovers(store: Store) -> None:
    """Remove group folders whose runs are not known: their process was killed while it made or removed them."""
    known = {group.folder for group in begun_groups(store)}
    work = store.folder / "work"
    for folder in list(work.iterdir()) if work.is_dir() else ():
        if folder not in known:
            shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        work.rmdir()  # unless a group is left


def plan(
    runs: Sequence[Settings],
    pairs: dict[str, AnyPair],
    options: ExecutionOptions,
    progress: Silent,
    limits: Mapping[object, int],
) -> list[list[Settings]]:
    """Return the runs in groups; one run each where networks, data or processes do not allow more.

    `limits` has the most runs of a group, by `group_key`.
    """
    by_key: dict[object, list[Settings]] = {}
    for run in runs:
        by_key.setdefault(run.group_key, []).append(run)
    found: list[list[Settings]] = []
    for key, some in by_key.items():
        most = 1 if len(some) == 1 else _together(some, pairs, options, progress, limits.get(key))
        found += groups(some, most)
    return found


def _together(
    some: Sequence[Settings],
    pairs: Mapping[str, AnyPair],
    options: ExecutionOptions,
    progress: Silent,
    limit: int | None,
) -> int:
    """Return how many of some runs to train as one, at most `limit`, and say why it is one."""
    pair = pairs[some[0].data]
    shape = input_shape(some[0], pair)
    reason = None
    if launched()[1] > 1 and options.parallel == "data":
        reason = "several processes share every batch"
    elif not isinstance(pair.train, ImageSet):
        reason = "large images are trained one run at a time"
    elif options.stacking != "alone":
        reason = nets.obstacle(make_network(some[0], pair.num_classes, shape))
    if reason is not None:
        progress.say_once(f"Runs are trained one after the other: {reason}.")
    if reason is not None or options.stacking == "alone":
        return 1
    most = options.together or likely_best(options.device, shape, some[0].batch_size, network_name(some[0].net, shape))
    if limit is not None:
        return min(most, limit)
    if options.device.type == "cuda" and not options.together:
        each = step_bytes(some[0], shape, pair.num_classes, options.device)
        most = runs_that_fit(torch.cuda.mem_get_info(options.device)[0], each, most)
    return most


def likely_best(device: torch.device, shape: tuple[int, int, int], batch_size: int, net: str) -> int:
    """Return how many runs train best as one: on a CPU as measured by `benchmarks/engine.py`.

    Small images leave a core idle between many small operations, which a group shares; large ones do not. A GPU is idle
    between the kernels of a small network, too.

    >>> cpu = torch.device("cpu")
    >>> [likely_best(cpu, (1, side, side), size, "cnn") for side, size in ((8, 16), (8, 128), (32, 128))]
    [8, 4, 1]
    >>> [likely_best(torch.device("cuda"), (3, 32, 32), 64, net) for net in ("cnn", "resnet32")]
    [256, 64]
    """
    if device.type == "cuda":
        return 256 if net == "cnn" else 64
    if shape[1] * shape[2] > _FEW_PIXELS:
        return 1
    return 8 if batch_size <= 64 else 4


def is_small(run: Settings, pairs: Mapping[str, AnyPair]) -> bool:
    """Return whether a run is the small CNN on small images, whose operations are too short to be shared by threads."""
    shape = input_shape(run, pairs[run.data])
    return network_name(run.net, shape) == "cnn" and shape[1] * shape[2] <= _FEW_PIXELS


def _network(run: Settings, pair: AnyPair) -> nets.Network:
    shape = input_shape(run, pair)
    try:
        return make_network(run, pair.num_classes, shape)
    except ValueError as error:
        name = network_name(run.net, shape)
        raise WrongSettingsError(f"net={name!r} does not fit the images of {pair.name}: {error}.") from error


def check(runs: Sequence[Settings], pairs: dict[str, AnyPair], options: ExecutionOptions) -> None:
    """Raise what can be known to be wrong before anything is written or trained."""
    check_loggers(options.log)
    if options.shares and options.parallel == "runs" and launched()[1] > 1:
        raise WrongSettingsError("--shard and --parallel runs contradict each other: torchrun shares out all runs.")
    if options.keep_samples and any(run.scenario == "stream" or run.signal == "none" for run in runs):
        raise WrongSettingsError(
            "--keep-samples keeps the ages of samples: a stream has ages of classes only, and signal='none' has none."
        )
    for run in {run.group_key: run for run in runs}.values():
        if pairs[run.data].num_classes < 2:
            raise WrongSettingsError(f"data={run.data!r} has a single class; at least two are needed.")
        input_shape(run, pairs[run.data])
        seen = data_of(run, pairs, pixels=False)
        pool(run, seen.train.labels, seen.shortcut)
    for run in {(run.data, run.net, run.nuisance, run.image_size): run for run in runs}.values():
        _network(run, pairs[run.data])


# Checkpoints


def save_checkpoint(path: Path, state: dict[str, object]) -> None:
    """Write tensors and primitives as a checkpoint."""
    buffer = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **state}, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> dict[str, object]:
    """Read a checkpoint onto the CPU; nothing in it is ever executed."""
    state = load_tensors(path)
    if state.get("format") != CHECKPOINT_FORMAT:
        raise DamagedCheckpointError(f"{path} was written by another version of aol")
    return state
