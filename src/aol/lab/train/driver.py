"""Train runs: group after group, resumable at any moment.

`train` takes a list of runs and a store, and trains those that have no complete record. Runs that can be trained as one
network form a group. A group in progress has a folder, `FOLDER/work/GROUP/`, with `group.json` (its runs) and
`checkpoint.pt`; it is always continued as it was begun, because the results of runs that are trained together equal
those of single runs only up to rounding. Several processes of torchrun share every batch of one run; the first writes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist

from aol._files import remove_partial_files, write_atomically
from aol.lab.engine.device import launched
from aol.lab.engine.source import AnyPair
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.folder import RunGroup, begun_groups, is_complete, new_group, read_valid, remove_group
from aol.lab.train.group_training import Context, ExecutionOptions, check, is_out_of_memory, most_together, train_group
from aol.lab.train.progress import Progress, Stop, duration
from aol.records import samples
from aol.records.record import FILE, DamagedRunError
from aol.records.store import Store

OpenData: TypeAlias = Callable[[Sequence[Settings]], dict[str, AnyPair]]
T = TypeVar("T")


@dataclass
class Outcome:
    """What came of it: runs trained now, whether it stopped early, at which signal, and runs that are too large."""

    trained: int = 0
    stopped: bool = False
    signal: int = 0
    untrained: dict[str, str] = field(default_factory=dict)

    def exit_status(self, failed: bool) -> int:
        """Return the exit status of a command; `failed`: a run diverged."""
        return 128 + self.signal if self.signal else int(failed or bool(self.untrained))


def train(
    runs: Sequence[Settings],
    store: Store,
    open_data: OpenData,
    options: ExecutionOptions,
    progress: Progress,
    *,
    keep: Sequence[str] | None = None,
    require: Sequence[str] = (),
    fresh: bool = False,
    prepare: Callable[[], None] | None = None,
    work: Callable[[Job, Stop], None] | None = None,
) -> Outcome:
    """Train all runs that have no complete record; they can be read from the store afterwards.

    `keep` names the readings by class to keep of every epoch (None: all), `require` those without which a run counts as
    missing. `prepare` is called in the locked folder; with `fresh` it deletes all runs. `work` trains the groups of a
    job; by default this process does.
    """
    stop = Stop(None if options.minutes is None else 60 * options.minutes)

    def is_trained(run: Settings) -> bool:
        """Return whether a run has a complete record, and its samples if they are kept; say once what is damaged."""
        folder = store.path(run.run_id)
        path = folder / FILE
        try:
            if not is_complete(read_valid(store, run), require):
                return False
            if options.keep_samples:
                path = folder / samples.FILE
                if (table := samples.read_samples(path, run.run_id)) is None:
                    raise DamagedRunError("it is missing")
                samples.read_ids(folder, len(table))
        except DamagedRunError as error:
            why = str(error).removeprefix(f"{path}: ").rstrip(".")
            progress.say_once(f"{path} is damaged and its run is trained again: {why}.")
            return False
        return True

    def missing(runs: Sequence[Settings]) -> list[Settings]:
        return [run for run in runs if not is_trained(run)]

    with _connected(options.device), contextlib.ExitStack() as held:
        # Whatever is wrong with settings or data is reported before anything is written.
        left = _from_first(lambda: list(runs) if fresh else missing(runs))
        pairs = open_data(left)
        if warning := check(left, pairs, options):
            progress.say_once(warning)

        def begin() -> list[Settings]:
            held.enter_context(store.lock())
            remove_partial_files(store.folder)
            if prepare:
                prepare()
            return missing(left)  # another process may have trained some since

        left = _from_first(begin)
        progress.start(runs, left, stop)
        job = Job(left, Context(store, pairs, options, progress, keep))
        with stop.on_signal():
            (work or _train_here)(job, stop)
        if job.outcome.trained or stop.came:
            took = duration(time.monotonic() - stop.start)
            text = f"{len(runs) - len(job.left)}/{len(runs)} runs complete after {took}."
            why = {0: "the time limit was reached", signal.SIGINT: "interrupted"}.get(stop.signal, "terminated")
            progress.say(f"{text} Stopped early: {why}." if stop.came else text)
    job.outcome.stopped, job.outcome.signal = stop.came, stop.signal
    return job.outcome


class Job:
    """Runs that are `left` to train, by id, one group at a time, so that a group that is too large can be split."""

    def __init__(self, left: Sequence[Settings], context: Context) -> None:
        self.left = {run.run_id: run for run in left}
        self.context, self.outcome = context, Outcome()
        self._most: dict[object, int] = {}  # runs together, by what they have in common

    def next_group(self, busy: Sequence[RunGroup] = ()) -> RunGroup | None:
        """Return a group that was begun, or a new one; None if nothing is left. `busy` groups are trained elsewhere."""
        store = self.context.store
        taken = self.outcome.untrained.keys() | {name for group in busy for name in group.ids}
        wanted = {name: run for name, run in self.left.items() if name not in taken}
        for group in begun_groups(store):
            if not group.ids.isdisjoint(wanted):
                if group.checkpoint.exists():
                    return group
                remove_group(group.folder)  # nothing was kept: planned again, as is wanted now
            elif group.ids.isdisjoint(self.left) and all(is_complete(store.get(name)) for name in group.ids):
                remove_group(group.folder)  # its process was killed while it made or removed it
        if not wanted:
            return None
        first = next(iter(wanted.values()))
        alike = [run for run in wanted.values() if run.group_key == first.group_key]
        if len(alike) > 1 and first.group_key not in self._most:
            pair = self.context.pairs[first.data]
            self._most[first.group_key], reason = most_together(alike, pair, self.context.options)
            if reason:
                self.context.progress.say_once(f"Runs are trained one after the other: {reason}.")
        parts = -(-len(alike) // self._most.get(first.group_key, 1))  # about equally large
        return new_group(alike[: -(-len(alike) // parts)], store)

    def begin(self, group: RunGroup) -> None:
        """Note on disk that a group begins."""
        self.context.check_place()
        for folder in (group.folder, *(self.context.store.path(name) for name in group.ids)):
            remove_partial_files(folder)
        content = {"runs": [run.as_dict() for run in group.runs]}
        write_atomically(group.folder / "group.json", (json.dumps(content, indent=1) + "\n").encode())

    def finish(self, group: RunGroup) -> None:
        """Count a group whose records were written, and remove its folder."""
        self.outcome.trained += len(group.runs)
        for name in group.ids:
            self.left.pop(name, None)
        self.context.progress.reach(group.runs, math.inf, "")
        remove_group(group.folder)

    def split(self, group: RunGroup, reason: str) -> None:
        """Train fewer runs together from now on; a group that was begun is left for a larger device."""
        size = len(group.runs)
        if group.checkpoint.exists():
            hint = f"continue on a larger device, or delete {group.folder} to start them again"
            self.leave(group, f"they were begun together and do not fit into memory: {hint} ({reason})")
            return
        if size == 1:
            self.leave(group, f"a single run does not fit into memory: {group.runs[0].method} ({reason})")
        else:
            half = self._most[group.runs[0].group_key] = -(-size // 2)
            text = f"{size} runs together do not fit into memory: trying {half} together. ({reason})"
            self.context.progress.say(text)
        remove_group(group.folder)

    def leave(self, group: RunGroup, reason: str) -> None:
        """Do not train a group."""
        self.outcome.untrained |= dict.fromkeys(group.ids, reason)
        self.context.progress.say(f"{len(group.runs)} runs are not trained: {reason}.")


def _train_here(job: Job, stop: Stop) -> None:
    """Train one group after the other in this process, or in all that torchrun has started."""
    rank, world = launched()
    while not stop.before() and (group := _from_first(job.next_group)):
        if world > 1 and len(group.runs) > 1:
            out = job.context.store.folder
            raise WrongSettingsError(f"{out} was begun by one process with runs trained together: resume it with one.")
        too_large = None
        try:
            if rank == 0:
                job.begin(group)
            if not train_group(group, job.context, stop):
                return
        except (MemoryError, RuntimeError) as error:
            if world > 1 or not is_out_of_memory(error):
                raise
            too_large = str(error).splitlines()[0]
        if too_large is not None:
            gc.collect()  # only now: the error held references to everything that was allocated
            if job.context.options.device.type == "cuda":
                torch.cuda.empty_cache()
            job.split(group, too_large)
        elif rank == 0:
            job.finish(group)


# Several processes


@contextlib.contextmanager
def _connected(device: torch.device) -> Iterator[None]:
    """Let the processes that torchrun started communicate; if one of them dies, the others end with one sentence."""
    rank, world = launched()
    if world == 1:
        yield
        return
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        yield
        dist.barrier()  # none leaves while another is still writing
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "/gloo/" not in str(error):
            raise
        text = f"the process of rank {rank} lost its connection to the other {world - 1}: see what they printed, then"
        raise RuntimeError(f"{text} start all {world} again.") from error
    finally:
        gc.collect()  # networks that are no longer used hold the group, and would end it too late: that aborts
        if dist.is_initialized():
            dist.destroy_process_group()


def _from_first(step: Callable[[], T]) -> T:
    """Take a step in the first of several processes only; its result is returned, its error raised, in all of them."""
    if not dist.is_initialized():
        return step()
    told: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            told[0] = step()
        except Exception as error:
            dist.broadcast_object_list([None, str(error)])
            raise
    dist.broadcast_object_list(told)
    if told[1] is not None:
        raise RuntimeError(told[1])
    return cast(T, told[0])
