"""A study run by a Ray cluster: this process plans and keeps the records, each stack is a task somewhere.

Assumes that the workers can import this library and open the data. Where they also see the study's folder, a task that
is lost goes on from its checkpoint; elsewhere it starts again. Ray itself is imported when it is used.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aol.data import open_data
from aol.engine.device import usable_device
from aol.engine.loop import Loop
from aol.engine.settings import Settings, WrongSettingsError
from aol.engine.source import AnyPair
from aol.engine.training import Conduct
from aol.study.claims import TakenOverError
from aol.study.records import decoded, encoded
from aol.study.running import Work
from aol.study.stacks import Stack, turn_of
from aol.study.stopping import Stop
from aol.study.training import TooLargeError, train_stack

_RETRIES = 4  # of a task whose worker died; a stack that kills every worker it meets must end somewhere


@dataclass(frozen=True)
class Conditions:
    """What a worker needs to know, whichever stack it trains.

    Args:
        folder_of: the folders of data sets that are not built in.
        data_dir: where the built-in ones lie.
        device: "auto", or what was asked for.
        workers: processes that decode images.
        checkpoint_seconds: the least time between two checkpoints.
    """

    folder_of: Mapping[str, str]
    data_dir: str | None
    device: str
    workers: int
    checkpoint_seconds: float


@dataclass(frozen=True)
class Job:
    """One stack for a worker: its folder as the planner sees it, the planner's turn at it, the seconds there are."""

    stack: Stack
    turn: int
    seconds: float | None
    conditions: Conditions


@dataclass(frozen=True)
class Answer:
    """What a worker has to say: records as they are written, or why there are none. It was stopped if neither is."""

    records: tuple[tuple[str, bytes], ...] = ()
    too_large: str | None = None
    said: tuple[str, ...] = ()


class _Watch:
    """Listens to a stack inside a worker: writes down how far it is, where the folder is shared."""

    def __init__(self, job: Job, shared: bool) -> None:
        self._job, self._shared = job, shared
        self._stop = Stop(job.seconds)
        self._noted = 0.0
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, loop: Loop) -> None:
        if loop.epoch:
            self.say(f"{len(loop.runs)} runs go on after epoch {loop.epoch}.")
        self.epoch(loop)

    def epoch(self, loop: Loop) -> None:
        if self._shared and time.monotonic() - self._noted >= 1.0:
            self._job.stack.note(loop.epoch)
            self._noted = time.monotonic()

    def may_write(self) -> None:
        if self._shared and turn_of(self._job.stack.folder) != self._job.turn:
            raise TakenOverError("The process that planned these runs was taken for dead, and another goes on.")

    def stop_before(self, seconds: float) -> bool:
        return self._stop.before(seconds)


def train_job(job: Job) -> Answer:
    """Train a stack inside a worker."""
    run, given = job.stack.runs[0], job.conditions
    pairs = {run.data: _opened(given.folder_of.get(run.data, run.data), given.data_dir)}
    shared = (job.stack.folder / "runs.json").exists()
    watch = _Watch(job, shared)
    with tempfile.TemporaryDirectory(prefix="aol-") as own:
        conduct = Conduct(
            out=Path(own),
            device=usable_device(given.device),
            workers=given.workers,
            checkpoint_seconds=given.checkpoint_seconds,
        )
        checkpoint = job.stack.checkpoint if shared else Path(own) / "checkpoint.pt"
        try:
            records = train_stack(job.stack.runs, pairs, conduct, checkpoint, watch, job.stack.keep)
        except TooLargeError as error:
            return Answer(too_large=str(error), said=tuple(watch.said))
    if records is None and not shared:
        watch.say(f"{len(job.stack.runs)} runs were stopped where {job.stack.folder} is not seen: they start again.")
    found = tuple((record.run_id, encoded(record)) for record in records or ())
    return Answer(found, said=tuple(watch.said))


@cache
def _opened(name: str, data_dir: str | None) -> AnyPair:
    return open_data(name, data_dir=data_dir)


class Cluster:
    """A Ray cluster: a new one on this machine ("local"), or the one at an address ("auto": the one that is there)."""

    def __init__(self, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray = ray_package()
        _reach(address)
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
        """Whether any machine of the cluster has one."""
        return bool(self._ray.cluster_resources().get("GPU", 0) >= 1)

    def slots(self, gpu: bool) -> int:
        """Return how many tasks can go on at once: one a GPU, or one a core. Machines may come and go."""
        return max(1, int(self._ray.cluster_resources().get("GPU" if gpu else "CPU", 1)))

    def submit(self, job: Job, gpu: bool) -> Any:
        """Start a task; Ray starts it again elsewhere if its worker or machine dies."""
        needs = {"num_gpus": 1} if gpu else {"num_cpus": 1}
        return self._ray.remote(max_retries=_RETRIES, **needs)(train_job).remote(job)

    def ready(self, tasks: list[Any], seconds: float) -> list[Any]:
        """Wait for tasks to end, but no longer than that; return those that have."""
        return list(self._ray.wait(tasks, num_returns=1, timeout=seconds)[0])

    def answer(self, task: Any) -> Answer:
        """Return a task's answer; what its worker raised is raised here."""
        errors = self._ray.exceptions
        try:
            found: Answer = self._ray.get(task)
        except errors.OutOfMemoryError as error:
            return Answer(too_large=str(error).splitlines()[0])
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        return found

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """The errors that say that a task's workers died more often than it is worth trying."""
        return (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.NodeDiedError)


def _reach(address: str) -> None:
    """Say at once if nobody answers at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():  # "local", "auto", or something that Ray knows
        return
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise WrongSettingsError(f"--ray {address}: there is no cluster: {error}") from error


def ray_package() -> ModuleType:
    """Return Ray; a sentence where it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise WrongSettingsError("--ray needs the package ray: pip install '.[ray]' in a checkout of aol.") from error


def run_on(cluster: Cluster, work: Work, stop: Stop, conditions: Conditions) -> None:
    """Let a cluster train what is missing."""
    gpu = conditions.device != "cpu" and cluster.has_gpus()
    work.conduct = replace(work.conduct, device=torch.device("cuda" if gpu else "cpu"))
    flying: dict[Any, Stack] = {}
    with stop.on_signal():
        while True:
            while len(flying) < cluster.slots(gpu) and not stop.before(0.0):
                stack = work.next_stack()
                if stack is None:
                    break
                left = None if stop.limit is None else stop.left()
                job = Job(stack, turn_of(stack.folder), left, conditions)
                work.tally.begin(stack.runs, stack.stand())
                flying[cluster.submit(job, gpu)] = stack
            if not flying:
                if stop.before(0.0) or not work.wait_for_others():
                    return
                time.sleep(1.0)
                continue
            for task in cluster.ready(list(flying), 1.0):
                stop.came |= not _land(cluster, work, task, flying.pop(task))
            _show(work, flying, "GPU" if gpu else "core")
            if stop.asked.is_set():  # tasks end with this process; what they have is in their checkpoints
                return


def _land(cluster: Cluster, work: Work, task: Any, stack: Stack) -> bool:
    """Take what a task has to say; return whether it went to its end, and was not stopped."""
    try:
        answer = cluster.answer(task)
        for text in answer.said:
            work.display.say(text)
        if answer.too_large is not None:
            work.split(stack, answer.too_large)
        elif not answer.records:
            work.claims.release(stack)
            return False
        else:
            work.finish(stack, [decoded(content, run_id) for run_id, content in answer.records])
    except TakenOverError as error:
        work.display.say(str(error))
    except cluster.lost as error:
        work.set_aside(stack, str(error).splitlines()[0])
    except BaseException:
        work.claims.release(stack)
        raise
    return True


def _show(work: Work, flying: dict[Any, Stack], where: str) -> None:
    runs: list[Settings] = [run for stack in flying.values() for run in stack.runs]
    for stack in flying.values():
        work.tally.epoch(stack.runs, stack.stand())
    many = f"{len(flying)} stacks" if len(flying) != 1 else "one stack"
    work.display.show(work.tally.standing(), f"{len(runs)} runs under way in {many}, one a {where}")
