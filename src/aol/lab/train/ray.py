"""Groups of runs on a Ray cluster: this process holds the folder's lock and plans; each group is a task on a worker.

The workers must be able to import this library, to open the data and to see the folder of the runs: a task whose worker
dies continues elsewhere from its checkpoint. Ray is imported when it is used.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from aol.lab.engine.device import usable_device
from aol.lab.engine.source import AnyPair
from aol.lab.settings import WrongSettingsError
from aol.lab.train.driver import Job, OpenData
from aol.lab.train.folder import RunGroup
from aol.lab.train.group_training import Context, is_out_of_memory, train_group
from aol.lab.train.progress import Progress, Stop

_RETRIES = 4  # of a task whose worker died: a group that kills every worker must not be tried for ever
_open: dict[str, AnyPair] = {}  # the data set that was opened last in this worker


def train_task(
    group: RunGroup, context: Context, seconds: float | None, device: str, open_data: OpenData
) -> tuple[bool, list[str]]:
    """Train a group on a worker, which writes its records; return whether it is complete, and what is to be said."""
    if not (group.folder / "group.json").exists():
        out = context.store.folder
        raise WrongSettingsError(f"{socket.gethostname()} does not see {out}: all machines must share --out.")
    if group.runs[0].data not in _open:
        _open.clear()
        _open.update(open_data(group.runs[:1]))
    options, notes = replace(context.options, device=usable_device(device)), Progress()
    done = train_group(group, Context(context.store, _open, options, notes, context.keep), Stop(seconds))
    return done, notes.said


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str) -> Iterator[None]:
    """Use a cluster: a new one on this machine ("local"), or the one at an address ("auto": the one that is there)."""
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal() and "://" not in address:  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10.0).close()
        more = {"include_dashboard": False} if address == "local" else {}
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **more)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise WrongSettingsError(f"--ray {address}: there is no cluster: {str(error).splitlines()[0]}") from error
    try:
        yield
    finally:
        ray.shutdown()


def train_on_ray(address: str, device: str, open_data: OpenData, job: Job, stop: Stop) -> None:
    """Train the groups of a job on a cluster, one on each core or GPU; machines may come and go."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise WrongSettingsError("--ray needs the package ray: pip install '.[ray]' in a checkout of aol.") from error
    with _connected(ray, address):
        gpu = device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1
        options = replace(job.context.options, device=torch.device("cuda" if gpu else "cpu"))
        if gpu and options.together is None and not torch.cuda.is_available():
            options = replace(options, together=64)  # the memory of a worker's GPU is not known here
        job.context.options, progress = options, job.context.progress
        sent = replace(job.context, pairs={}, progress=Progress())
        # Ray starts a task again elsewhere if its worker or machine dies.
        task = ray.remote(max_retries=_RETRIES, **({"num_gpus": 1} if gpu else {"num_cpus": 1}))(train_task)
        flying: dict[Any, RunGroup] = {}
        while not stop.signal:  # tasks end with this process; their checkpoints stay
            slots = max(1, int(ray.cluster_resources().get("GPU" if gpu else "CPU", 1)))
            while len(flying) < slots and not stop.before() and (group := job.next_group([*flying.values()])):
                job.begin(group)
                progress.begin(group.runs, 0, "")
                left = None if stop.limit is None else stop.left()
                flying[task.remote(group, sent, left, device, open_data)] = group
            if not flying:
                return
            for answer in ray.wait(list(flying), num_returns=1, timeout=1.0)[0]:
                _take(ray, job, stop, answer, flying.pop(answer))
            progress.show(f"Training {len(flying)} groups")


def _take(ray: ModuleType, job: Job, stop: Stop, answer: Any, group: RunGroup) -> None:
    """Take the answer of a task: whether its group was trained to its end."""
    errors = ray.exceptions
    try:
        done, said = ray.get(answer)
    except errors.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if not is_out_of_memory(cause):
            raise cause from None
        job.split(group, str(cause).splitlines()[0])
    except errors.OutOfMemoryError as error:
        job.split(group, str(error).splitlines()[0])
    except (errors.WorkerCrashedError, errors.NodeDiedError) as error:  # more often than a task is tried
        job.leave(group, str(error).splitlines()[0])
    else:
        for text in said:
            job.context.progress.say(text)
        if done:
            job.finish(group)
        else:
            stop.came = True
