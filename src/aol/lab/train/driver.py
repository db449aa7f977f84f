"""Train runs: group after group, resumable at any moment, in one process or several.

`train` takes a list of runs and a store, and trains those that have no complete record. Runs that can be trained as one
network form a group. A group in progress has a folder, `FOLDER/work/GROUP/`, with `group.json` (its runs) and
`checkpoint.pt`; it is always continued as it was begun, because the results of runs that are trained together equal
those of single runs only up to rounding.
"""

from __future__ import annotations

import contextlib
import gc
import math
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch.distributed as dist

from aol._files import acquire, is_locked, remove_partial_files
from aol.lab.engine.device import launched
from aol.lab.engine.loop import Loop
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.from_loop import RecordWriter
from aol.lab.train.group_training import GroupTooLargeError, train_group
from aol.lab.train.groups import ExecutionOptions, RunGroup, check, lock_name, remove_leftovers, shares_of
from aol.lab.train.job import Job, OpenData, Outcome
from aol.lab.train.loggers import Loggers
from aol.lab.train.progress import Silent, describe, duration, imbalance_note
from aol.lab.train.validate import get_valid, is_complete
from aol.records.store import Store, resume_command

_SHOW_EVERY = 0.5  # seconds between two displays within an epoch
_PATIENCE = timedelta(minutes=10)  # with processes that only meet before they train


@dataclass
class Stop:
    """When to stop: after some seconds, or because the system asks for it (SIGTERM)."""

    limit: float | None = None
    asked: threading.Event = field(default_factory=threading.Event)
    came: bool = False
    _start: float = field(default_factory=time.monotonic)

    def before(self, seconds: float) -> bool:
        """Return whether there is no time left for something that takes so long."""
        self.came = self.came or self.asked.is_set() or self.left() < seconds
        return self.came

    def passed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Return the seconds that are left; infinity without a limit."""
        return math.inf if self.limit is None else self.limit - self.passed()

    @contextlib.contextmanager
    def on_signal(self) -> Iterator[None]:
        """Stop cleanly on SIGTERM, which schedulers send before they kill."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(_number: int, _frame: FrameType | None) -> None:
            self.asked.set()

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def train(
    runs: Sequence[Settings],
    store: Store,
    open_data: OpenData,
    options: ExecutionOptions,
    progress: Silent,
    *,
    keep: Sequence[str] | None = None,
    require: Sequence[str] = (),
    asked: Sequence[Settings] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Outcome:
    """Train all runs that have no complete record; they can be read from the store afterwards.

    `prepare` is called once, when every process has locked its part of the folder, before anything else is written.
    Shares follow from the order of `asked`, where that of `runs` depends on what is trained.
    """
    rank, world = launched()
    shared = world > 1 and options.parallel == "data"
    writes = rank == 0 or not shared
    shares = shares_of(options)
    share = shares[0] if len(shares) == 1 else None  # of several, none is left to another process
    divided = asked or runs
    names = [lock_name((number, world), divided, options) for number in range(1, world + 1)]
    stop = Stop(None if options.minutes is None else 60 * options.minutes)
    backend = "nccl" if options.device.type == "cuda" else "gloo"
    with (
        _connected(backend) if shared else contextlib.nullcontext(),
        contextlib.ExitStack() as held,
        contextlib.ExitStack() as training,
    ):
        # Whatever is wrong with settings or data is reported before anything is written.
        opened = open_data(runs) if prepare else {}
        check(runs if prepare else (), opened, options)

        def lock() -> None:
            if writes:
                store.prepare()
                held.enter_context(store.lock("" if share is None else lock_name(share, divided, options)))
            if world > 1 and not shared:
                training.callback(acquire(store.folder, _training_lock(store, names[rank]), "--out").release)

        def begin() -> None:
            if rank == 0 and not (share and options.shares):  # another share's process may be writing a file
                remove_partial_files(store.folder)
            if rank == 0 and share is None:
                remove_leftovers(store)
            if rank == 0 and prepare:
                prepare()

        # Processes that share only the list of runs need not communicate while they train.
        with _connected("gloo", _PATIENCE) if world > 1 and not shared else contextlib.nullcontext():
            _in_all(lock, world)  # until all have their part, another command may be training runs that begin() deletes
            _in_all(begin, world)
        held.enter_context(stop.on_signal())  # not before: SIGTERM ends a process that waits for the others
        opens = open_data if prepare is None else lambda _: opened
        job = Job(runs, store, options, opens, progress, keep=keep, require=require, asked=divided)
        _train_all(job, stop, shared=shared, writes=writes)
        _say_the_end(job, stop, share)
        if world > 1 and not shared and not stop.came:
            training.close()
            _wait_for_others(runs, job, names, stop)
    job.outcome.stopped, job.outcome.terminated = stop.came, stop.asked.is_set()
    return job.outcome


def _say_the_end(job: Job, stop: Stop, share: tuple[int, int] | None) -> None:
    """Say what was done in the end, and why it ended early."""
    if not job.outcome.trained and not stop.came:
        return
    status = job.tally.status()
    named = "" if share is None else f"Share {share[0]}/{share[1]}: "
    text = f"{named}{status.done}/{status.total} runs complete after {duration(stop.passed())}."
    if stop.came:
        text += " Stopped early: " + ("terminated." if stop.asked.is_set() else "the time limit was reached.")
    job.progress.say(text)


def _train_all(job: Job, stop: Stop, *, shared: bool, writes: bool) -> None:
    start_up = 0.0
    while not _agreed(stop.before(start_up), shared):
        group = _agreed_group(job, shared, stop.left() - start_up)
        if group is None:
            if any(run.run_id not in job.outcome.untrained for run in job.missing()):
                job.progress.say("No other group of runs would be complete in the time that is left.")
                stop.came = True
            return
        if writes:
            job.begin(group)
        here = _GroupTraining(job, group, stop, shared=shared, writes=writes)
        try:
            save = here.save if writes else None
            loop = train_group(group.runs, job.pairs, job.options, group.checkpoint, here, save)
        except GroupTooLargeError as error:
            if shared:
                raise
            job.split(group, str(error))
            continue
        finally:
            here.close()
        if loop is None:
            return
        if writes:
            job.finish(group)
        if shared:
            dist.barrier()  # the next group is planned when the records of this one are written
        start_up = max(start_up, here.start_up)


class _GroupTraining:
    """Watches the group that is trained here, writes its records, and knows how long its first epoch took."""

    def __init__(self, job: Job, group: RunGroup, stop: Stop, *, shared: bool, writes: bool) -> None:
        self._job, self._group, self._stop, self._shared, self._writes = job, group, stop, shared, writes
        self._begun = time.monotonic()
        self._writer: RecordWriter | None = None
        self._loggers: Loggers | None = None
        self._shown = -math.inf
        self.start_up = 0.0

    def say(self, text: str) -> None:
        self._job.progress.say(text)

    def begin(self, loop: Loop) -> None:
        job, options = self._job, self._job.options
        job.tally.begin(self._group.runs, loop.epoch)
        if text := imbalance_note(loop):
            job.progress.say_once(text)
        if self._writes:
            self._writer = RecordWriter(
                loop, job.store, keep=job.keep, networks=options.networks, data_dir=options.data_dir
            )
            if options.log:
                folders = [job.store.path(run.run_id) for run in loop.runs]
                self._loggers = Loggers(options.log, folders, loop)
        self._show(loop)

    def epoch(self, loop: Loop) -> None:
        self._job.tally.epoch(self._group.runs, loop.epoch)
        self.start_up = self.start_up or time.monotonic() - self._begun
        if self._loggers:
            self._loggers.epoch()
        self._show(loop)

    def _show(self, loop: Loop) -> None:
        self._job.progress.update(self._job.tally.status(), describe(loop), loop)
        self._shown = time.monotonic()

    def batch(self, loop: Loop) -> None:
        if time.monotonic() - self._shown >= _SHOW_EVERY:
            self._shown = time.monotonic()
            share = self._job.tally.batch(self._group.runs, loop.epoch, loop.work)
            self._job.progress.update(self._job.tally.status(), describe(loop, share))

    def stop_before(self, seconds: float) -> bool:
        return _agreed(self._stop.before(seconds), self._shared)

    def save(self, loop: Loop, finished: bool) -> None:
        assert self._writer is not None
        self._writer.write(finished=finished)

    def close(self) -> None:
        if self._loggers:
            self._loggers.close()


# Several processes


def _agreed(stop: bool, shared: bool) -> bool:
    """Return whether any process that shares the data wants to stop."""
    if not shared:
        return stop
    wishes: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(wishes, stop)
    return any(wishes)


def _agreed_group(job: Job, shared: bool, left: float) -> RunGroup | None:
    """Return the next group: where processes share the data, the one that the first of them plans."""
    if not shared:
        return job.next_group(left=left)
    told = [job.next_group(left=left) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told)
    if told[0] is not None and len(told[0].runs) > 1:
        out = job.store.folder
        raise WrongSettingsError(f"{out} was begun by one process with runs trained together: resume it with one.")
    return told[0]


@contextlib.contextmanager
def _connected(backend: str, patience: timedelta | None = None) -> Iterator[None]:
    """Let the processes that torchrun started communicate; if one of them dies, the others end with one sentence."""
    rank, world = launched()
    try:
        dist.init_process_group(backend, timeout=patience)
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RuntimeError(f"the process of rank {rank} does not reach the other {world - 1}: {reason}") from error
    try:
        yield
        dist.barrier()  # none leaves while another is still writing
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or (type(error) is RuntimeError and "/gloo/" in str(error))
        if not lost:
            raise
        ended = any(sign in str(error) for sign in ("closed by peer", "reset by peer", "Broken pipe"))
        reason = "one of them has probably ended" if ended else str(error).splitlines()[0]
        raise RuntimeError(
            f"the process of rank {rank} lost its connection to the other {world - 1}: {reason}. See what they "
            f"printed, then start all {world} again."
        ) from error
    finally:
        gc.collect()  # networks that are no longer used hold the group, and would end it too late: that aborts
        dist.destroy_process_group()


def _in_all(step: Callable[[], None], world: int) -> None:
    """Take a step in every process. None goes on before all have taken it; if it fails in one, it fails in all."""
    if world == 1:
        step()
        return
    own: Exception | None = None
    try:
        step()
    except Exception as error:
        own = error
    errors: list[Exception | None] = [None] * world
    dist.all_gather_object(errors, _sendable(own))
    dist.barrier()  # none closes its connections while another still reads from them
    if first := own or next((error for error in errors if error is not None), None):
        raise first


def _sendable(error: Exception | None) -> Exception | None:
    """Return an error that other processes can read: itself or, if it cannot be pickled, its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # pickling calls the code of the error
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _wait_for_others(runs: Sequence[Settings], job: Job, names: Sequence[str], stop: Stop) -> None:
    """Wait for the processes that share the list of runs, as long as each holds the lock of its name and one trains.

    torchrun ends all processes if one dies; processes that were started by hand would wait for it forever. So would
    all of them for a run that did not fit into memory.
    """
    store = job.store
    for run in runs:
        while not is_complete(get_valid(store, run)):
            trains = any(is_locked(_training_lock(store, name)) for name in names)
            gone = [rank for rank, name in enumerate(names) if not is_locked(store.folder / f".lock-{name}")]
            if stop.before(0.0) or (job.outcome.untrained and not trains):
                return
            if (gone or not trains) and stop.limit is None and not is_complete(get_valid(store, run)):
                who = f"the processes of rank {', '.join(map(str, gone))}" if gone else "other processes"
                raise RuntimeError(
                    f"{who} (of {len(names)}) ended before their runs were complete: see what they printed, then start "
                    f"all {len(names)} again, or run `{resume_command(store.folder)}` with one."
                )
            time.sleep(0.2)


def _training_lock(store: Store, name: str) -> Path:
    """Return the file that a process holds while it trains its share, and no longer while it waits for the others."""
    return store.folder / f".lock_trains-{name}"
