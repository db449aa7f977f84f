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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aol._files import read_regular
from aol.lab.data import open_data
from aol.lab.engine.device import usable_device
from aol.lab.engine.loop import Loop
from aol.lab.engine.source import AnyPair
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.driver import Stop
from aol.lab.train.from_loop import OVER_TIME, records_of
from aol.lab.train.group_training import GroupTooLargeError, train_group
from aol.lab.train.groups import ExecutionOptions, RunGroup
from aol.lab.train.job import Job, OpenData, Outcome
from aol.lab.train.progress import Silent
from aol.records.record import decode, encode
from aol.records.store import Store

_RETRIES = 4  # of a task whose worker died: a group that kills every worker must not be tried for ever


@dataclass(frozen=True)
class Task:
    """One group for a worker, the seconds it has, and how it is trained.

    `device` is what was asked for, "auto" say; `folders` are those of data sets that are not built in, by name.
    """

    group: RunGroup
    seconds: float | None
    device: str
    options: ExecutionOptions
    folders: Mapping[str, str] = field(default_factory=dict)


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
        self._noted = 0.0
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, loop: Loop) -> None:
        self.epoch(loop)

    def epoch(self, loop: Loop) -> None:
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
    group, data_dir = task.group, task.options.data_dir
    name = group.runs[0].data
    pairs = {name: _open(task.folders.get(name, name), data_dir)}
    shared = (group.folder / "group.json").exists()
    watch = _Watch(task, shared)
    options = replace(task.options, device=usable_device(task.device))
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
    records = records_of(loop, finished=True, keep=OVER_TIME, data_dir=data_dir)
    return Answer(tuple(encode(record) for record in records), said=tuple(watch.said))


@cache
def _open(name: str, data_dir: str | None) -> AnyPair:
    return open_data(name, data_dir=data_dir)


# The cluster


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str) -> Iterator[None]:
    """Use a cluster: a new one on this machine ("local"), or the one at an address ("auto": the one that is there)."""
    _check_reachable(address)
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        ray.init(address=address, **quiet, **({"include_dashboard": False} if address == "local" else {}))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise WrongSettingsError(f"--ray {address}: {str(error).splitlines()[0]}") from error
    try:
        yield
    finally:
        ray.shutdown()


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
    device: str,
    folders: Mapping[str, str],
    require: Sequence[str] = (),
) -> Outcome:
    """Train all runs that have no complete record on a cluster; the same as `runs.driver.train`.

    Each worker chooses its `device`; `folders` are those of a `Task`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise WrongSettingsError("--ray needs the package ray: pip install '.[ray]' in a checkout of aol.") from error
    stop = Stop(None if options.minutes is None else 60 * options.minutes)
    store.prepare()
    with _connected(ray, address), store.lock(), stop.on_signal():
        gpu = device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1
        planned = replace(options, device=torch.device("cuda" if gpu else "cpu"), shares=())
        if gpu and options.together is None and not torch.cuda.is_available():
            planned = replace(planned, together=64)  # the memory of a worker's GPU is not known here
        job = Job(runs, store, planned, open_data, progress, require=require)
        # Ray starts a task again elsewhere if its worker or machine dies.
        train = ray.remote(max_retries=_RETRIES, **({"num_gpus": 1} if gpu else {"num_cpus": 1}))(train_task)

        def start(group: RunGroup) -> Any:
            left = None if stop.limit is None else stop.left()
            return train.remote(Task(group, left, device, options, folders))

        _train_all(ray, job, stop, start, "GPU" if gpu else "CPU")
    job.outcome.stopped, job.outcome.terminated = stop.came, stop.asked.is_set()
    return job.outcome


def _train_all(ray: ModuleType, job: Job, stop: Stop, start: Callable[[RunGroup], Any], resource: str) -> None:
    """Keep one task on every core or GPU of the cluster until nothing is left; machines may come and go."""
    flying: dict[Any, RunGroup] = {}
    while True:
        slots = max(1, int(ray.cluster_resources().get(resource, 1)))
        while len(flying) < slots and not stop.before(0.0):
            group = job.next_group(list(flying.values()))
            if group is None:
                break
            job.begin(group)
            job.tally.begin(group.runs, _epoch(group))
            flying[start(group)] = group
        if not flying:
            return
        for task in ray.wait(list(flying), num_returns=1, timeout=1.0)[0]:
            stop.came |= not _finish(ray, job, task, flying.pop(task))
        for group in flying.values():
            job.tally.epoch(group.runs, _epoch(group))
        many, where = sum(len(group.runs) for group in flying.values()), "GPU" if resource == "GPU" else "core"
        job.progress.update(job.tally.status(), f"Training {many} runs in {len(flying)} groups, one a {where}")
        if stop.asked.is_set():  # tasks end with this process; their checkpoints stay
            return


def _epoch(group: RunGroup) -> int:
    """Return the epoch that a worker noted, where the folder is shared."""
    try:
        return int(read_regular(group.folder / "epoch", 20))
    except (OSError, ValueError):
        return 0


def _finish(ray: ModuleType, job: Job, task: Any, group: RunGroup) -> bool:
    """Take the answer of a task; return whether the group was trained to its end, and not stopped."""
    errors = ray.exceptions
    try:
        answer: Answer = ray.get(task)
    except errors.OutOfMemoryError as error:
        answer = Answer(too_large=str(error).splitlines()[0])
    except errors.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except (errors.WorkerCrashedError, errors.NodeDiedError) as error:  # more often than a task is tried
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
