"""From a list of runs to a folder of results: stacks, one after the other, resumable at any moment.

The folder: `runs.json` (what was asked for), `stack-K/checkpoint.pt` (while stack K is under way), and for each run
`runs/ID/` with `settings.json`, `epochs.csv`, `classes.csv`, `network.safetensors` and, last, `result.json`.
"""

from __future__ import annotations

import json
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
from aol.engine.files import held, load_checkpoint, save_checkpoint, write_atomically
from aol.engine.learner import network_name
from aol.engine.loop import Loop
from aol.engine.offline import OfflineLoop
from aol.engine.results import Json, read_result, result, versions, write_result
from aol.engine.settings import Settings, WrongSettingsError, stacks
from aol.engine.source import AnyPair
from aol.engine.streaming import StreamLoop


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
    """How runs are carried out; none of it changes their results.

    Args:
        out: the folder for everything that is written.
        device: where to train.
        resume: go on with what is in `out`.
        together: the most runs in a stack; by default as many as the device likes.
        workers: processes that decode images of a large set.
        keep_samples: keep the age of every sample at every epoch.
        checkpoint_seconds: the least time between two checkpoints.
        parallel: what several processes started by torchrun share: every batch ("data") or the list of "runs".
        tensorboard: write event files too.
    """

    out: Path
    device: torch.device
    resume: bool = False
    together: int | None = None
    workers: int = 0
    keep_samples: bool = False
    checkpoint_seconds: float = 30.0
    parallel: str = "data"
    tensorboard: bool = False


def train(
    runs: Sequence[Settings], pairs: dict[str, AnyPair], conduct: Conduct, progress: Progress
) -> list[dict[str, Json]]:
    """Train all runs that have no result yet, and return the results of all, in the order given.

    `pairs` holds the data sets by the name that `Settings.data` has.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    out = conduct.out
    shared = world > 1 and conduct.parallel == "data"
    with _processes(shared, conduct.device), _claimed(out, rank, shared):
        if rank == 0:
            _prepare(runs, conduct)
        _wait(world, conduct.parallel, out)
        groups = _group(runs, pairs, conduct, shared, progress)
        mine = range(len(groups)) if shared or world == 1 else range(rank, len(groups), world)
        for number in mine:
            if any(read_result(_folder(out, run)) is None for run in groups[number]):
                _train_stack(groups, number, pairs, conduct, progress, write=rank == 0 or not shared)
    _wait_for_results(runs, out, world, conduct.parallel)
    found = [read_result(_folder(out, run)) for run in runs]
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
    group = groups[number]
    kind = StreamLoop if group[0].scenario == "stream" else OfflineLoop
    loop = kind(
        group,
        pairs[group[0].data],
        device=conduct.device,
        workers=conduct.workers,
        keep_samples=conduct.keep_samples,
    )
    path = conduct.out / f"stack-{number}" / "checkpoint.pt"
    if path.exists():
        loop.load_state_dict(load_checkpoint(path, conduct.device))
    progress.begin(number, len(groups), loop)
    saved = time.monotonic()
    while not loop.done:
        loop.run_epoch()
        progress.epoch(loop)
        if write and not loop.done and time.monotonic() - saved >= conduct.checkpoint_seconds:
            save_checkpoint(path, loop.state_dict())
            _write_records(loop, conduct)
            saved = time.monotonic()
    if write:
        _write_records(loop, conduct)
        _finish(loop, conduct)
        path.unlink(missing_ok=True)
        if path.parent.exists():
            path.parent.rmdir()


def _write_records(loop: Loop, conduct: Conduct) -> None:
    for row, run in enumerate(loop.runs):
        folder = _folder(conduct.out, run)
        write_atomically(folder / "settings.json", (json.dumps(run.as_dict(), indent=1) + "\n").encode())
        loop.history.write(folder, row, loop.classes)
        if conduct.keep_samples:
            loop.history.write_samples(folder, row, loop.pool[row], loop.labels)


def _finish(loop: Loop, conduct: Conduct) -> None:
    from safetensors.torch import save

    for row, run in enumerate(loop.runs):
        folder = _folder(conduct.out, run)
        state = {name: value.cpu().contiguous() for name, value in loop.learner.net.unstack(row).items()}
        write_atomically(folder / "network.safetensors", save(state))
        if conduct.tensorboard:
            _write_events(loop, row, folder)
        write_result(folder, result(loop, row, folder, versions(conduct.device)))


def _write_events(loop: Loop, row: int, folder: Path) -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise WrongSettingsError(
            "--tensorboard needs the package tensorboard: pip install 'aol[tensorboard]'."
        ) from error
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for name in ("train_loss", "train_accuracy", "test_accuracy", "lr"):
            for epoch, value in enumerate(loop.history.epoch(name)[:, row].tolist(), 1):
                if value == value:
                    writer.add_scalar(name, value, epoch)
        for epoch, ages in enumerate(loop.history.by_class("age")[:, row], 1):
            named = {f"{place}": float(age) for place, age in enumerate(ages)}
            writer.add_scalars("class_age", named, epoch)


def _folder(out: Path, run: Settings) -> Path:
    return out / "runs" / run.run_id


def _prepare(runs: Sequence[Settings], conduct: Conduct) -> None:
    """Note what was asked for, or see that it is what was asked for before."""
    for left in conduct.out.rglob(".*.part"):  # half a file, of a process that was killed while writing
        left.unlink()
    path = conduct.out / "runs.json"
    wanted = [run.as_dict() for run in runs]
    if path.exists():
        if not conduct.resume:
            raise WrongSettingsError(
                f"{conduct.out} holds runs already: add --resume to go on with them, or choose another --out."
            )
        if json.loads(path.read_text()) != wanted:
            raise WrongSettingsError(
                f"{conduct.out} holds other runs than these: repeat its settings, or choose another --out."
            )
        return
    write_atomically(path, (json.dumps(wanted, indent=1) + "\n").encode())


def _group(
    runs: Sequence[Settings], pairs: dict[str, AnyPair], conduct: Conduct, shared: bool, progress: Progress
) -> list[list[Settings]]:
    """Return the stacks: one run each where networks, data or processes do not allow more, with a sentence why."""
    together = conduct.together or (64 if conduct.device.type == "cuda" else 8)
    found = []
    for name in dict.fromkeys((run.data, run.net) for run in runs):
        some = [run for run in runs if (run.data, run.net) == name]
        most, pair = together, pairs[name[0]]
        shape = pair.train.shape
        reason = None
        if shape is not None and len(some) > 1:
            if shared:
                reason = "several processes share every batch"
            elif not isinstance(pair.train, ImageSet):
                reason = f"{pair.name} is decoded on the fly"
            else:
                net = nets.make(
                    network_name(name[1], shape),
                    num_classes=pair.num_classes,
                    in_channels=shape[0],
                    image_size=shape[1],
                    seed=0,
                )
                reason = nets.obstacle(net)
        if reason:
            progress.say(f"Runs are trained one after the other: {reason}.")
            most = 1
        found += stacks(some, most)
    return found


@contextmanager
def _processes(shared: bool, device: torch.device) -> Iterator[None]:
    """Let the processes that torchrun started talk to each other, where they share the data."""
    if not shared:
        yield
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _claimed(out: Path, rank: int, shared: bool) -> Iterator[None]:
    """Hold the folder: one process for itself, or the first of those that share the data."""
    if shared and rank > 0:
        yield
        return
    with held(out, rank):
        yield


def _wait(world: int, parallel: str, out: Path) -> None:
    """Let the first process look at the folder before the others read it."""
    if world > 1 and parallel == "data":
        dist.barrier()
    while world > 1 and not (out / "runs.json").exists():
        time.sleep(0.05)


def _wait_for_results(runs: Sequence[Settings], out: Path, world: int, parallel: str) -> None:
    """Where processes share the list of runs, wait for the others: torchrun ends all of them if one dies."""
    while world > 1 and parallel == "runs" and any(read_result(_folder(out, run)) is None for run in runs):
        time.sleep(0.2)
