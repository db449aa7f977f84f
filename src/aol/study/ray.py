"""A study on a Ray cluster: this process holds the folder's lock, plans and writes; each group is a task on a worker.

The workers must be able to import this library and open the data. Where they also see the study's folder, a task whose
worker dies continues from its checkpoint; elsewhere it starts again. Ray is imported when it is used.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aol._files import read_regular
from aol.data import open_data
from aol.engine.device import usable_device
from aol.engine.loop import Loop
from aol.engine.settings import Settings, WrongSettingsError
from aol.engine.source import AnyPair
from aol.runs.driver import Stop
from aol.runs.from_loop import records_of
from aol.runs.group_training import GroupTooLargeError, train_group
from aol.runs.groups import ExecutionOptions, RunGroup
from aol.runs.job import Job, OpenData, Outcome
from aol.runs.progress import Silent
from aol.runs.record import decode, encode
from aol.runs.store import Store
from aol.runs.validate import damaged_runs

_RETRIES = 4  # of a task whose worker died: a group that kills every worker must not be tried for ever


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker needs to know, whichever group it trains.

    Args:
        device: "auto", or what was asked for.
        folders: folders of data sets that are not built in, by name.
        data_dir: where the built-in ones are.
        workers: processes that decode images.
        checkpoint_seconds: the least time between two checkpoints.
        keep: readings by class to keep of every epoch; None: all.
    """

    device: str = "auto"
    folders: Mapping[str, str] = field(default_factory=dict)
    data_dir: str | None = None
    workers: int = 0
    checkpoint_seconds: float = 60.0
    keep: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Task:
    """One group for a worker, and the seconds it has."""

    group: RunGroup
    seconds: float | None
    options: WorkerOptions


@dataclass(frozen=True)
class Answer:
    """What a worker returns: the contents of the records, or why there are none. It was stopped if neither is set."""

    records: tuple[bytes, ...] = ()
    too_large: str | None = None
    said: tuple[str, ...] = ()


# On a worker


class _Watch:
    """Watches a group on a worker, and notes its epoch where the folder is shared."""

    def __init__(self, task: Task, shared: bool) -> None:
        self._folder = task.group.folder if shared else None
        self._stop = Stop(task.seconds)
        self._noted = self._begun = 0.0
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def epoch(self, loop: Loop) -> None:
        if not self._begun:
            self._begun = time.monotonic()
            if loop.epoch:
                self.say(f"Continuing {len(loop.runs)} runs after epoch {loop.epoch}.")
        if self._folder and time.monotonic() - self._noted >= 1.0:
            with contextlib.suppress(OSError):
                (self._folder / "epoch").write_text(str(loop.epoch))
            self._noted = time.monotonic()

    def batch(self, loop: Loop) -> None:
        pass  # epochs are enough

    def stop_before(self, seconds: float) -> bool:
        return self._stop.before(seconds)


def train_task(task: Task) -> Answer:
    """Train a group on a worker and return its records."""
    group, given = task.group, task.options
    name = group.runs[0].data
    pairs = {name: _open(given.folders.get(name, name), given.data_dir)}
    shared = (group.folder / "group.json").exists()
    watch = _Watch(task, shared)
    options = ExecutionOptions(
        device=usable_device(given.device), workers=given.workers, checkpoint_seconds=given.checkpoint_seconds
    )
    with tempfile.TemporaryDirectory(prefix="aol-") as own:
        checkpoint = group.checkpoint if shared else Path(own) / group.checkpoint.name
        try:
            loop = train_group(group.runs, pairs, options, checkpoint, watch, lambda _loop, _finished: None)
        except GroupTooLargeError as error:
            return Answer(too_large=str(error), said=tuple(watch.said))
    if loop is None:
        if not shared:
            watch.say(f"{len(group.runs)} runs were stopped on a worker that does not see {group.folder}: "
                      "they will start again.")  # fmt: skip
        return Answer(said=tuple(watch.said))
    records = records_of(loop, finished=True, keep=given.keep, data_dir=given.data_dir)
    return Answer(tuple(encode(record) for record in records), said=tuple(watch.said))


@cache
def _open(name: str, data_dir: str | None) -> AnyPair:
    return open_data(name, data_dir=data_dir)


# The cluster


def ray_package() -> ModuleType:
    """Return Ray; an error of one sentence where it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise WrongSettingsError("--ray needs the package ray: pip install '.[ray]' in a checkout of aol.") from error


class Cluster:
    """A Ray cluster: a new one on this machine ("local"), or the one at an address ("auto": the one that is there)."""

    def __init__(self, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray = ray_package()
        _check_reachable(address)
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        try:
            self._ray.init(address=address, **quiet, **({"include_dashboard": False} if address == "local" else {}))
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise WrongSettingsError(f"--ray {address}: {str(error).splitlines()[0]}") from error

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def has_gpus(self) -> bool:
        """Return whether any machine of the cluster has one."""
        return bool(self._ray.cluster_resources().get("GPU", 0) >= 1)

    def slots(self, gpu: bool) -> int:
        """Return how many tasks can run at once: one a GPU, or one a core. Machines may come and go."""
        return max(1, int(self._ray.cluster_resources().get("GPU" if gpu else "CPU", 1)))

    def submit(self, task: Task, gpu: bool) -> Any:
        """Start a task; Ray starts it again elsewhere if its worker or machine dies."""
        needs = {"num_gpus": 1} if gpu else {"num_cpus": 1}
        return self._ray.remote(max_retries=_RETRIES, **needs)(train_task).remote(task)

    def ready(self, tasks: list[Any], seconds: float) -> list[Any]:
        """Wait for tasks to end, but no longer than this; return those that have."""
        return list(self._ray.wait(tasks, num_returns=1, timeout=seconds)[0])

    def answer(self, task: Any) -> Answer:
        """Return a task's answer; an error of its worker is raised here."""
        errors = self._ray.exceptions
        try:
            answer: Answer = self._ray.get(task)
        except errors.OutOfMemoryError as error:
            return Answer(too_large=str(error).splitlines()[0])
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        return answer

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """The errors of a task whose workers died more often than it is tried."""
        return (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.NodeDiedError)


def _check_reachable(address: str) -> None:
    """Report at once if nothing answers at HOST:PORT; Ray itself tries for minutes."""
    name, _, port = address.rpartition(":")
    if "://" in address or not name or not port.isdecimal():  # "local", "auto", or something that Ray knows
        return
    try:
        socket.create_connection((name, int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise WrongSettingsError(f"--ray {address}: there is no cluster: {error}") from error


# The planner


def train_on_ray(
    address: str,
    runs: Sequence[Settings],
    store: Store,
    open_data: OpenData,
    options: ExecutionOptions,
    progress: Silent,
    *,
    worker: WorkerOptions,
    require: Sequence[str] = (),
) -> Outcome:
    """Train all runs that have no complete record on a cluster; the same as `runs.driver.train`.

    Of `options`, `together` and `minutes` are used; `worker` says the rest.
    """
    stop = Stop(None if options.minutes is None else 60 * options.minutes)
    store.prepare()
    with Cluster(address) as cluster, store.lock(), stop.on_signal():
        gpu = worker.device != "cpu" and cluster.has_gpus()
        planned = replace(options, device=torch.device("cuda" if gpu else "cpu"), shard=None)
        if gpu and options.together is None and not torch.cuda.is_available():
            planned = replace(planned, together=64)  # the memory of a worker's GPU is not known here
        job = Job(runs, store, planned, open_data, progress, keep=worker.keep, require=require)
        for path, why in damaged_runs(store, job.runs):
            progress.say(f"{path} is damaged and its run is trained again: {why}.")
        _train_all(cluster, job, stop, worker, gpu)
    job.outcome.stopped, job.outcome.terminated = stop.came, stop.asked.is_set()
    return job.outcome


def _train_all(cluster: Cluster, job: Job, stop: Stop, worker: WorkerOptions, gpu: bool) -> None:
    flying: dict[Any, RunGroup] = {}
    while True:
        while len(flying) < cluster.slots(gpu) and not stop.before(0.0):
            group = job.next_group(list(flying.values()))
            if group is None:
                break
            job.begin(group)
            left = None if stop.limit is None else stop.left()
            job.tally.begin(group.runs, _epoch(group))
            flying[cluster.submit(Task(group, left, worker), gpu)] = group
        if not flying:
            return
        for task in cluster.ready(list(flying), 1.0):
            stop.came |= not _finish(cluster, job, task, flying.pop(task))
        for group in flying.values():
            job.tally.epoch(group.runs, _epoch(group))
        many = sum(len(group.runs) for group in flying.values())
        where = "GPU" if gpu else "core"
        job.progress.update(job.tally.status(), f"Training {many} runs in {len(flying)} groups, one a {where}")
        if stop.asked.is_set():  # tasks end with this process; their checkpoints stay
            return


def _epoch(group: RunGroup) -> int:
    """Return the epoch that a worker noted, where the folder is shared."""
    try:
        return int(read_regular(group.folder / "epoch", 20))
    except (OSError, ValueError):
        return 0


def _finish(cluster: Cluster, job: Job, task: Any, group: RunGroup) -> bool:
    """Take the answer of a task; return whether the group was trained to its end, and not stopped."""
    try:
        answer = cluster.answer(task)
    except cluster.lost as error:
        job.set_aside(group, str(error).splitlines()[0])
        return True
    for text in answer.said:
        job.progress.say(text)
    if answer.too_large is not None:
        job.split(group, answer.too_large)
    elif not answer.records:
        return False
    else:
        for content in answer.records:
            job.store.write(decode(content))
        job.finish(group)
    return True
