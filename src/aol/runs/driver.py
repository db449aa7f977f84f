"""Train runs: as groups, with checkpoints, resumable at any moment. The only place that drives a training loop.

`train` takes a list of runs and a store, and trains those that have no complete record. Runs that can be trained as one
network form a group. A group in progress has a folder, `FOLDER/work/GROUP/`, with `group.json` (its runs) and
`checkpoint.pt`; it is always continued as it was begun, because the results of runs that are trained together equal
those of single runs only up to rounding.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch
import torch.distributed as dist

from aol._files import remove_partial_files, write_atomically
from aol.engine.launch import launched
from aol.engine.loop import Loop
from aol.engine.offline import OfflineLoop
from aol.engine.settings import Settings, WrongSettingsError
from aol.engine.source import AnyPair, data_of
from aol.engine.stream import StreamLoop
from aol.nets.registry import STACKINGS
from aol.runs.from_loop import RecordWriter
from aol.runs.groups import ExecutionOptions as ExecutionOptions
from aol.runs.groups import RunGroup as RunGroup
from aol.runs.groups import (
    begun_groups,
    check,
    load_checkpoint,
    new_group,
    plan,
    remove_leftovers,
    save_checkpoint,
    shard_of,
    stacking_of,
)
from aol.runs.loggers import Loggers
from aol.runs.pace import Pace, that_fits
from aol.runs.progress import Silent, Tally, describe, duration, imbalance_note
from aol.runs.record import Json
from aol.runs.store import REQUEST, Store, read_request, write_request
from aol.runs.validate import damaged_runs, get_valid, is_complete

OpenData = Callable[[Sequence[Settings]], dict[str, AnyPair]]
_SHOW_EVERY = 0.5  # seconds between two displays within an epoch
_PATIENCE = timedelta(minutes=10)  # with processes that only meet before they train
_SHARE_OF_TIME = 0.05  # that writing checkpoints and records may take


class GroupTooLargeError(RuntimeError):
    """These runs do not fit into memory together."""


@dataclass
class Outcome:
    """What came of it: runs trained now, whether it stopped early, by SIGTERM, and runs that could not be trained."""

    trained: int = 0
    stopped: bool = False
    terminated: bool = False
    untrained: dict[str, str] = field(default_factory=dict)


# When to stop


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


# What was asked for


def prepare(
    runs: Sequence[Settings], store: Store, request: dict[str, Json], *, resume: bool = False, fresh: bool = False
) -> None:
    """Note what was asked for in the folder, which the caller has locked; nothing that was trained is overwritten.

    `resume` continues the same runs, `fresh` deletes the runs in the folder first. A folder that holds runs is refused
    without either.
    """
    if resume and fresh:
        raise WrongSettingsError("--resume and --fresh contradict each other: continue, or delete and start again.")
    out = store.folder
    if fresh:
        _clear(out)
    begun = any(out.glob("work/*/checkpoint.pt")) or bool(store.ids())
    if begun and not resume:
        raise WrongSettingsError(
            f"{out} already holds runs: add --resume to continue them, --fresh to delete them, or choose another --out."
        )
    before = read_request(out)
    asked = {**request, "ids": [run.run_id for run in runs], "runs": [run.as_dict() for run in runs]}
    if begun and before is not None and before.get("ids") != asked["ids"]:
        raise WrongSettingsError(f"{out} holds other runs: repeat their settings, or choose another --out.")
    write_request(out, asked)  # type: ignore[arg-type]


def _clear(out: Path) -> None:
    """Delete the runs in a folder; refuse a folder that was not made by a command of ours."""
    ours = [out / "runs", *out.glob(".lock*")]  # a new folder has these already
    others = [path for path in out.glob("*") if path not in ours] or list(out.glob("runs/*"))
    if others and not (out / REQUEST).exists():
        raise WrongSettingsError(f"--fresh deletes only what aol wrote, but {out} holds no runs: choose another --out.")
    for name in ("runs", "work"):
        if (out / name).is_dir() and not (out / name).is_symlink():
            shutil.rmtree(out / name)
    (out / REQUEST).unlink(missing_ok=True)  # last: until then the folder is known as ours


def requested_runs(request: dict[str, Json]) -> list[Settings]:
    """Return the runs of a request."""
    runs = request["runs"]
    assert isinstance(runs, list)
    try:
        return [Settings(**each) for each in runs]  # type: ignore[arg-type]
    except TypeError as error:
        raise WrongSettingsError(f"{REQUEST} was written by another version of aol: {error}.") from error


# One group


class Watch(Protocol):
    """Who is told how a group progresses, and says when to stop."""

    def say(self, text: str) -> None:
        """Take a sentence."""

    def epoch(self, loop: Loop) -> None:
        """Take the loop before its first epoch here, and after each."""

    def batch(self, loop: Loop) -> None:
        """Take the loop after each batch within an epoch; readings on the device are not ready."""

    def stop_before(self, seconds: float) -> bool:
        """Return whether to stop, if it would be that long until the next question."""


def make_loop(
    runs: Sequence[Settings], pairs: dict[str, AnyPair], options: ExecutionOptions, *, stacking: str | None = None
) -> Loop:
    """Return the loop that trains a group, before its first epoch; `stacking` is that of a checkpoint."""
    kind = StreamLoop if runs[0].scenario == "stream" else OfflineLoop
    if stacking is None:
        stacking = stacking_of(runs, pairs, options).joint if len(runs) > 1 else "grouped"
    return kind(
        runs,
        data_of(runs[0], pairs),
        device=options.device,
        workers=options.workers,
        keep_samples=options.keep_samples,
        stacking=stacking,
    )


def train_group(
    runs: Sequence[Settings],
    pairs: dict[str, AnyPair],
    options: ExecutionOptions,
    checkpoint: Path,
    watch: Watch,
    save: Callable[[Loop, bool], None] | None = None,
) -> Loop | None:
    """Train runs as one network and return the finished loop; None if it was stopped, with its state in the checkpoint.

    `save(loop, finished)` is called with every checkpoint and at the end. Under DDP only the process that has `save`
    writes. `GroupTooLargeError` if the runs do not fit into memory together.
    """
    try:
        return _train_group(runs, pairs, options, checkpoint, watch, save)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0]
    gc.collect()  # only now: the error held references to everything that was allocated
    if options.device.type == "cuda":
        torch.cuda.empty_cache()
    raise GroupTooLargeError(reason)


def _train_group(
    runs: Sequence[Settings],
    pairs: dict[str, AnyPair],
    options: ExecutionOptions,
    checkpoint: Path,
    watch: Watch,
    save: Callable[[Loop, bool], None] | None,
) -> Loop | None:
    loop = _resumed(runs, pairs, options, checkpoint, watch)
    watch.epoch(loop)
    loop.on_batch = lambda: watch.batch(loop)
    saved, saving = time.monotonic(), 0.0
    while not loop.done:
        start = time.monotonic()
        loop.run_epoch()
        watch.epoch(loop)
        stop = not loop.done and watch.stop_before(1.25 * (time.monotonic() - start) + saving)
        rest = max(options.checkpoint_seconds, saving / _SHARE_OF_TIME) if options.checkpoint_seconds else 0.0
        due = time.monotonic() - saved >= rest
        if save and not loop.done and (stop or due):
            start = time.monotonic()
            save_checkpoint(checkpoint, loop.state_dict())
            save(loop, False)
            saved = time.monotonic()
            saving = saved - start
        if stop:
            loop.close()
            return None
    loop.close()
    if save:
        save(loop, True)
    return loop


def _resumed(
    runs: Sequence[Settings], pairs: dict[str, AnyPair], options: ExecutionOptions, checkpoint: Path, watch: Watch
) -> Loop:
    """Return the loop where its checkpoint left it; from the start where that cannot be used."""
    if not checkpoint.exists():
        return make_loop(runs, pairs, options)
    try:
        state = load_checkpoint(checkpoint)
        loop = make_loop(runs, pairs, options, stacking=_stacking_in(state))
        if state.get("keep_samples") != loop.keep_samples:
            raise WrongSettingsError("These runs were begun with the other choice of --keep-samples: repeat it.")
        loop.load_state_dict(state)
    except WrongSettingsError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:  # damaged, or of other settings
        if _is_out_of_memory(error):
            raise
        kept = checkpoint.with_suffix(".damaged")
        watch.say(
            f"{len(runs)} runs start again from the first epoch: {str(error).splitlines()[0]}. "
            f"The checkpoint was renamed to {kept.name}."
        )
        os.replace(checkpoint, kept)
        return make_loop(runs, pairs, options)
    return loop


def _stacking_in(state: dict[str, object]) -> str:
    """Return how the runs of a checkpoint became one network: it is continued as it was begun."""
    found = state.get("stacking", "grouped")
    return found if isinstance(found, str) and found in STACKINGS else "grouped"


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is used up; on a CPU it is a plain RuntimeError that says so."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


# All runs


class Job:
    """What is left of a list of runs: planned one group at a time, so that a group that is too large can be split.

    Args:
        runs: all that are wanted.
        store: where records go.
        options: device, and how many together.
        open_data: opens the data sets of some runs.
        progress: is told how it goes.
        keep: readings by class to keep of every epoch; None: all.
        require: readings over time without which a run counts as missing.
    """

    def __init__(
        self,
        runs: Sequence[Settings],
        store: Store,
        options: ExecutionOptions,
        open_data: OpenData,
        progress: Silent,
        *,
        keep: Sequence[str] | None = None,
        require: Sequence[str] = (),
    ) -> None:
        self.store, self.options, self.progress, self.keep = store, options, progress, keep
        self.outcome = Outcome()
        self._require = require
        self._complete: set[str] = set()
        self._limits: dict[object, int] = {}  # of runs together, where more were too many
        self._pace: Pace | None = None  # where time is limited
        self._aside: set[Path] = set()  # groups that do not fit on this device
        self.runs = list(runs)
        self.pairs = open_data(self.missing() if shard_of(options) is None else self.runs)
        self._take_share()
        left = self.missing()
        check(left, self.pairs, options)
        self.tally = Tally(self.runs, left, self.pairs)

    def _take_share(self) -> None:
        """Keep this process's share of the runs: whole groups, the same whatever is trained already."""
        shard = shard_of(self.options)
        if shard is None:
            return
        equal = {key: -(-count // shard[1]) for key, count in Counter(run.group_key for run in self.runs).items()}
        shares = plan(self.runs, self.pairs, self.options, self.progress, limits=equal)
        self._limits = {group[0].group_key: len(group) for group in reversed(shares)}  # the first is the largest
        mine = {run.run_id for group in shares[shard[0] - 1 :: shard[1]] for run in group}
        self.runs = [run for run in self.runs if run.run_id in mine]

    def missing(self) -> list[Settings]:
        """Return the runs without a complete record, in their order."""
        found = []
        for run in self.runs:
            if run.run_id not in self._complete:
                if is_complete(get_valid(self.store, run), self._require):
                    self._complete.add(run.run_id)
                else:
                    found.append(run)
        return found

    def next_group(self, elsewhere: Sequence[RunGroup] = (), left: float = math.inf) -> RunGroup | None:
        """Return the next group to train: one that was begun, or a new one; None if nothing is left.

        `elsewhere` are groups that other workers train now. With a limit of time, a new group is one that ends in the
        `left` seconds, and None can also mean that there is none (see `pace.that_fits`).
        """
        taken = {run.run_id for group in elsewhere for run in group.runs} | self.outcome.untrained.keys()
        wanted = {run.run_id: run for run in self.missing() if run.run_id not in taken}
        for begun in begun_groups(self.store):
            ids = [run.run_id for run in begun.runs]
            if all(is_complete(get_valid(self.store, run)) for run in begun.runs) and wanted.keys().isdisjoint(ids):
                self.remove(begun)
            elif not wanted.keys().isdisjoint(ids) and begun.folder not in self._aside:
                return begun
        if not wanted:
            return None
        planned = plan(list(wanted.values()), self.pairs, self.options, self.progress, limits=self._limits)
        if self.options.minutes is None:
            return new_group(planned[0], self.store)
        self._pace = self._pace or Pace(self.store, self.pairs, self.options.device)
        chosen = that_fits(planned, self._pace, left, first=self.outcome.trained == 0)
        return None if chosen is None else new_group(chosen, self.store)

    def begin(self, group: RunGroup) -> None:
        """Note on disk that a group begins."""
        for folder in (group.folder, *(self.store.path(run.run_id) for run in group.runs)):
            remove_partial_files(folder)
        content = {"runs": [run.as_dict() for run in group.runs]}
        write_atomically(group.folder / "group.json", (json.dumps(content, indent=1) + "\n").encode())

    def finish(self, group: RunGroup) -> None:
        """Count a group whose records were written, and remove its folder."""
        self.outcome.trained += len(group.runs)
        self._complete.update(run.run_id for run in group.runs)
        if self._pace is not None:
            self._pace.learn([run for each in group.runs if (run := self.store.get(each.run_id)) is not None])
        self.tally.finish(group.runs)
        self.progress.update(self.tally.status(), "")
        self.remove(group)

    def remove(self, group: RunGroup) -> None:
        """Remove the folder of a group that is complete."""
        shutil.rmtree(group.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            group.folder.parent.rmdir()  # unless there are others

    def split(self, group: RunGroup, reason: str) -> None:
        """Train fewer runs together from now on; a group that was begun is left for a larger device."""
        size = len(group.runs)
        if group.checkpoint.exists():
            text = (
                f"they were begun together on a larger device and do not fit into the memory of this one; train them "
                f"there, or delete {group.folder} to start them again ({reason})"
            )
            self.set_aside(group, text)
            return
        if size == 1:
            self.outcome.untrained[group.runs[0].run_id] = reason
            self.progress.say(f"A single run does not fit into memory: {group.runs[0].method}. ({reason})")
        else:
            half = -(-size // 2)
            self._limits[group.runs[0].group_key] = half
            self.progress.say(f"{size} runs together do not fit into memory: trying {half} together. ({reason})")
        self.remove(group)

    def set_aside(self, group: RunGroup, reason: str) -> None:
        """Leave a group as it is."""
        self._aside.add(group.folder)
        self.outcome.untrained |= {run.run_id: reason for run in group.runs}
        self.progress.say(f"{len(group.runs)} runs are not trained: {reason}.")


def train(
    runs: Sequence[Settings],
    store: Store,
    open_data: OpenData,
    options: ExecutionOptions,
    progress: Silent,
    *,
    keep: Sequence[str] | None = None,
    require: Sequence[str] = (),
    prepare: Callable[[], None] | None = None,
) -> Outcome:
    """Train all runs that have no complete record; they can be read from the store afterwards.

    `prepare` is called once when the folder is locked, before anything else is written.
    """
    rank, world = launched()
    shared = world > 1 and options.parallel == "data"
    writes = rank == 0 or not shared
    shard = shard_of(options)
    stop = Stop(None if options.minutes is None else 60 * options.minutes)
    with _process_group(shared, options.device), stop.on_signal(), contextlib.ExitStack() as lock:
        # Whatever is wrong with settings or data is reported before anything is written.
        opened = open_data(runs) if prepare else {}
        check(runs if prepare else (), opened, options)
        if writes:
            store.prepare()
            lock.enter_context(store.lock("" if shard is None else f"{shard[0]}-of-{shard[1]}"))
            remove_partial_files(store.folder)
            if shard is None:
                remove_leftovers(store)
        if rank == 0 and prepare:
            prepare()
        _meet(world, shared)
        opens = open_data if prepare is None else lambda _: opened
        job = Job(runs, store, options, opens, progress, keep=keep, require=require)
        for path, why in damaged_runs(store, job.runs) if writes else ():
            progress.say(f"{path} is damaged and its run is trained again: {why}.")
        _train_all(job, stop, shared=shared, writes=writes)
        _say_the_end(job, stop, shard)
        if world > 1 and not shared and not stop.came:
            _wait_for_others(runs, store, world, stop)
    job.outcome.stopped, job.outcome.terminated = stop.came, stop.asked.is_set()
    return job.outcome


def _say_the_end(job: Job, stop: Stop, shard: tuple[int, int] | None) -> None:
    """Say what was done in the end, and why it ended early."""
    if not job.outcome.trained and not stop.came:
        return
    status = job.tally.status()
    share = "" if shard is None else f"Share {shard[0]}/{shard[1]}: "
    text = f"{share}{status.done}/{status.total} runs complete after {duration(stop.passed())}."
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
        self._started = False
        self._shown = -math.inf
        self.start_up = 0.0

    def say(self, text: str) -> None:
        self._job.progress.say(text)

    def epoch(self, loop: Loop) -> None:
        job = self._job
        if not self._started:
            self._start(loop)
        else:
            job.tally.epoch(self._group.runs, loop.epoch)
            self.start_up = self.start_up or time.monotonic() - self._begun
            if self._loggers:
                self._loggers.epoch()
        job.progress.update(job.tally.status(), describe(loop), loop)
        self._shown = time.monotonic()

    def batch(self, loop: Loop) -> None:
        if time.monotonic() - self._shown >= _SHOW_EVERY:
            self._shown = time.monotonic()
            share = self._job.tally.batch(self._group.runs, loop.work)
            self._job.progress.update(self._job.tally.status(), describe(loop, share))

    def _start(self, loop: Loop) -> None:
        job, options = self._job, self._job.options
        self._started = True
        job.tally.begin(self._group.runs, loop.epoch)
        if text := imbalance_note(loop):
            job.progress.say_once(text)
        if loop.epoch:
            self.say(f"Continuing {len(loop.runs)} runs after epoch {loop.epoch}.")
        if self._writes:
            self._writer = RecordWriter(
                loop, job.store, keep=job.keep, networks=options.networks, data_dir=options.data_dir
            )
            if options.log:
                folders = [job.store.path(run.run_id) for run in loop.runs]
                self._loggers = Loggers(options.log, folders, loop)

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
def _process_group(shared: bool, device: torch.device) -> Iterator[None]:
    """Let the processes that torchrun started communicate, where they share the data."""
    if not shared:
        yield
        return
    _gather("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
        dist.barrier()  # none leaves while another is still writing
    finally:
        gc.collect()  # networks that are no longer used hold the group, and would end it too late: that aborts
        dist.destroy_process_group()


def _meet(world: int, shared: bool) -> None:
    """Let the first process prepare the folder before the others read it."""
    if shared:
        dist.barrier()
    elif world > 1:  # they share only the list of runs, and need not communicate while they train
        _gather("gloo", _PATIENCE)
        dist.barrier()
        dist.destroy_process_group()


def _gather(backend: str, patience: timedelta | None = None) -> None:
    """Wait for all processes that the environment names."""
    rank, world = launched()
    try:
        dist.init_process_group(backend, timeout=patience)
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RuntimeError(f"the process of rank {rank} does not reach the other {world - 1}: {reason}") from error


def _wait_for_others(runs: Sequence[Settings], store: Store, world: int, stop: Stop) -> None:
    """Wait for the processes that share the list of runs, as long as each holds its share of the folder.

    torchrun ends all processes if one dies; processes that were started by hand would wait for it forever.
    """
    while not _all_complete(runs, store) and not stop.before(0.0):
        gone = [rank for rank in range(world) if not store.is_locked(f"{rank + 1}-of-{world}")]
        if gone and stop.limit is None and not _all_complete(runs, store):
            ranks = ", ".join(map(str, gone))
            raise RuntimeError(
                f"the processes of rank {ranks} (of {world}) ended before their runs were complete: see what they "
                f"printed, then start all {world} again, or run `aol resume {store.folder}` with one."
            )
        time.sleep(0.2)


def _all_complete(runs: Sequence[Settings], store: Store) -> bool:
    return all(is_complete(get_valid(store, run)) for run in runs)
