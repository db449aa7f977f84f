"""From a list of runs to a folder of results: stacks, one after the other, resumable at any moment.

The folder: `runs.json` (what was asked for), `stacks.json` (what is trained as one), `stack-K/checkpoint.pt` (while
stack K is under way), and for each run `runs/ID/` with its records; `result.json`, written last, says that it is over.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from aol import nets
from aol.data.images import ImageSet
from aol.engine import capacity
from aol.engine.events import Events, check_tensorboard
from aol.engine.files import load_checkpoint, save_checkpoint
from aol.engine.folder import checkpoint_path, note_stacks, prepare, recall_stacks, run_folder
from aol.engine.learner import network_name
from aol.engine.loop import Loop, pool
from aol.engine.offline import OfflineLoop
from aol.engine.results import Json, read_result, result, versions, write_result
from aol.engine.settings import Settings, WrongSettingsError, groups
from aol.engine.source import AnyPair, shape_of
from aol.engine.stream import StreamLoop
from aol.engine.writing import RunRecords
from aol.records.files import held, sweep, write_atomically


class Progress(Protocol):
    """Who wants to hear how it goes."""

    def say(self, text: str) -> None:
        """Hear a sentence."""

    def begin(self, stack: int, stacks: int, loop: Loop) -> None:
        """Hear that a stack begins, or goes on."""

    def epoch(self, loop: Loop) -> None:
        """Hear that an epoch is over."""


@dataclass(frozen=True)
class Conduct:
    """How runs are carried out: what makes no difference to what is learnt, but for rounding.

    Args:
        out: the folder for everything that is written.
        device: where to train.
        resume: go on with what is in `out`.
        fresh: delete the runs in `out` first.
        together: the most runs in a stack; by default as many as the device likes.
        workers: processes that decode images of a large set.
        keep_samples: keep what was answered to every sample at every epoch, and so its age.
        checkpoint_seconds: the least time between two checkpoints.
        parallel: what several processes started by torchrun share: every batch ("data") or the list of "runs". Sharing
            batches equals one process to rounding, except that batch norm sees each process's own share, as in DDP.
        tensorboard: write event files too.
        data_dir: where the data sets were looked for.
    """

    out: Path
    device: torch.device
    resume: bool = False
    fresh: bool = False
    together: int | None = None
    workers: int = 0
    keep_samples: bool = False
    checkpoint_seconds: float = 30.0
    parallel: str = "data"
    tensorboard: bool = False
    data_dir: str | None = None

    def __post_init__(self) -> None:
        if self.resume and self.fresh:
            raise WrongSettingsError("--resume and --fresh contradict each other: go on, or delete and start again.")


def train(
    runs: Sequence[Settings], pairs: dict[str, AnyPair], conduct: Conduct, progress: Progress
) -> list[dict[str, Json]]:
    """Train all runs that have no result yet, and return the results of all, in the order given.

    `pairs` holds the data sets by the name that `Settings.data` has.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    out = conduct.out
    shared = world > 1 and conduct.parallel == "data"
    check(runs, pairs, conduct)
    with _processes(shared, conduct.device), _claimed(out, rank, shared):
        if rank == 0:
            prepare(runs, out, resume=conduct.resume, fresh=conduct.fresh)
            if recall_stacks(runs, out) is None:
                note_stacks(group(runs, pairs, conduct, world, progress), out)
        _meet(world, shared)
        groups = recall_stacks(runs, out) or []
        if shared and any(len(stack) > 1 for stack in groups):
            raise WrongSettingsError(f"{out} was begun by one process with runs trained together: resume it with one.")
        mine = range(len(groups)) if shared or world == 1 else range(rank, len(groups), world)
        for number in mine:
            if any(read_result(run_folder(out, run)) is None for run in groups[number]):
                _train_stack(groups, number, pairs, conduct, progress, write=rank == 0 or not shared)
            elif rank == 0 or not shared:
                _remove_checkpoint(out, number)  # of a process that was killed just before it would have done so
        _wait_for_results(runs, out, world, conduct.parallel)  # still holding the folder
    found = [read_result(run_folder(out, run)) for run in runs]
    return [each for each in found if each is not None]


def _train_stack(
    groups: Sequence[Sequence[Settings]],
    number: int,
    pairs: dict[str, AnyPair],
    conduct: Conduct,
    progress: Progress,
    *,
    write: bool,
) -> None:
    stack = groups[number]
    loop = loop_for(stack, pairs, conduct)
    path = checkpoint_path(conduct.out, number)
    folders = [run_folder(conduct.out, run) for run in stack]
    if write:
        for folder in (path.parent, *folders):
            sweep(folder)
    if path.exists():
        loop.load_state_dict(load_checkpoint(path))
    progress.begin(number, len(groups), loop)
    events = Events(folders, loop) if write and conduct.tensorboard else None
    records = RunRecords(loop, conduct.out, conduct.data_dir) if write else None
    saved = time.monotonic()
    while not loop.done:
        loop.run_epoch()
        progress.epoch(loop)
        if events:
            events.epoch()
        if records and not loop.done and time.monotonic() - saved >= conduct.checkpoint_seconds:
            save_checkpoint(path, loop.state_dict())
            records.write()
            saved = time.monotonic()
    if events:
        events.close()
    if records:
        records.write()
        _finish(loop, conduct)
        _remove_checkpoint(conduct.out, number)


def loop_for(stack: Sequence[Settings], pairs: dict[str, AnyPair], conduct: Conduct) -> Loop:
    """Return the loop that trains a stack, before its first epoch."""
    kind = StreamLoop if stack[0].scenario == "stream" else OfflineLoop
    return kind(
        stack,
        pairs[stack[0].data],
        device=conduct.device,
        workers=conduct.workers,
        keep_samples=conduct.keep_samples,
    )


def _finish(loop: Loop, conduct: Conduct) -> None:
    from safetensors.torch import save

    for row, run in enumerate(loop.runs):
        folder = run_folder(conduct.out, run)
        for name, state in loop.learner.networks(row).items():
            write_atomically(folder / f"{name}.safetensors", save(state))
        write_result(folder, result(loop, row, folder, versions(conduct.device)))


def _remove_checkpoint(out: Path, number: int) -> None:
    path = checkpoint_path(out, number)
    path.unlink(missing_ok=True)
    if path.parent.exists():
        path.parent.rmdir()


def check(runs: Sequence[Settings], pairs: dict[str, AnyPair], conduct: Conduct) -> None:
    """Raise what can be known to be wrong before anything is written or trained."""
    if conduct.tensorboard:
        check_tensorboard()
    if conduct.keep_samples and any(run.scenario == "stream" or run.signal == "none" for run in runs):
        raise WrongSettingsError(
            "--keep-samples keeps the ages of samples: a stream has those of classes only, and signal='none' has none."
        )
    for run in {run.group_key: run for run in runs}.values():
        pair = pairs[run.data]
        shape_of(pair, run.image_size)
        pool(run, pair.train.labels)
    for run in {(run.data, run.net, run.image_size): run for run in runs}.values():
        _network(run, pairs[run.data])


def _network(run: Settings, pair: AnyPair) -> nets.Network:
    shape = shape_of(pair, run.image_size)
    name = network_name(run.net, shape)
    try:
        return nets.make(name, num_classes=pair.num_classes, in_channels=shape[0], image_size=shape[1], seed=run.seed)
    except ValueError as error:
        raise WrongSettingsError(f"net={name!r} does not fit the images of {pair.name}: {error}.") from error


def group(
    runs: Sequence[Settings], pairs: dict[str, AnyPair], conduct: Conduct, world: int, progress: Progress
) -> list[list[Settings]]:
    """Return the stacks: one run each where networks, data or processes do not allow more, with a sentence why.

    Processes that share the runs get a stack each, at least.
    """
    shared = world > 1 and conduct.parallel == "data"
    found: list[list[Settings]] = []
    said: set[str] = set()
    for key in dict.fromkeys(run.group_key for run in runs):
        some = [run for run in runs if run.group_key == key]
        pair = pairs[some[0].data]
        shape = shape_of(pair, some[0].image_size)
        most = conduct.together or likely_best(conduct.device, shape, some[0].batch_size)
        reason: str | None
        if conduct.parallel == "runs":
            most = min(most, -(-len(some) // world))
        if shared:
            reason = "several processes share every batch"
        elif not isinstance(pair.train, ImageSet):
            reason = f"{pair.name} is decoded on the fly"
        else:
            reason = nets.obstacle(_network(some[0], pair))
        if reason and len(some) > 1 and reason not in said:
            said.add(reason)
            progress.say(f"Runs are trained one after the other: {reason}.")
        if conduct.device.type == "cuda" and not conduct.together and not reason and len(some) > 1:
            each = capacity.step_bytes(some[0], shape, pair.num_classes, conduct.device)
            most = capacity.runs_that_fit(torch.cuda.mem_get_info(conduct.device)[0], each, most)
        found += groups(some, 1 if reason else most)
    return found


def likely_best(device: torch.device, shape: tuple[int, int, int], batch_size: int) -> int:
    """Return how many runs train best as one: on a CPU as measured by `benchmarks/engine.py`.

    Small images leave a core idle between many small operations, which a stack shares; large ones do not.

    >>> [likely_best(torch.device("cpu"), (1, side, side), size) for side, size in ((8, 16), (8, 128), (32, 128))]
    [8, 4, 1]
    """
    if device.type == "cuda":
        return 64
    if shape[1] * shape[2] > 256:
        return 1
    return 8 if batch_size <= 64 else 4


@contextmanager
def _processes(shared: bool, device: torch.device) -> Iterator[None]:
    """Let the processes that torchrun started talk to each other, where they share the data."""
    if not shared:
        yield
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
        dist.barrier()  # none leaves while another is still writing results
    finally:
        gc.collect()  # networks no longer used hold on to the group, and would end it too late: that aborts the process
        dist.destroy_process_group()


@contextmanager
def _claimed(out: Path, rank: int, shared: bool) -> Iterator[None]:
    """Hold the folder: one process for itself, or the first of those that share the data."""
    if shared and rank > 0:
        yield
        return
    with held(out, rank):
        yield


def _meet(world: int, shared: bool) -> None:
    """Let the first process look at the folder before the others read it."""
    if shared:
        dist.barrier()
    elif world > 1:  # they share only the list of runs, and have nothing more to say to each other while they train
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()


def _wait_for_results(runs: Sequence[Settings], out: Path, world: int, parallel: str) -> None:
    """Where processes share the list of runs, wait for the others: torchrun ends all of them if one dies."""
    while world > 1 and parallel == "runs" and any(read_result(run_folder(out, run)) is None for run in runs):
        time.sleep(0.2)
