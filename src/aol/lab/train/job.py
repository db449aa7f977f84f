"""What is to be trained: the runs asked for, the groups of those that are left, and which fit into the time."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from aol._files import UnusableFolderError, remove_partial_files, write_atomically
from aol.lab.engine.source import AnyPair
from aol.lab.settings import Settings, WrongSettingsError, groups
from aol.lab.train.groups import ExecutionOptions, RunGroup, begun_groups, check, new_group, plan, shares_of
from aol.lab.train.progress import Silent, Tally, costs
from aol.lab.train.validate import get_valid, is_complete, read_valid, settings_of
from aol.records import samples
from aol.records.record import FILE, DamagedRunError, Json, Run, versions
from aol.records.store import REQUEST, Store, read_request, requested_ids, resume_command, write_request

OpenData = Callable[[Sequence[Settings]], dict[str, AnyPair]]


def prepare(
    runs: Sequence[Settings],
    store: Store,
    request: dict[str, Json],
    *,
    resume: bool = False,
    fresh: bool = False,
    share: Sequence[Settings] | None = None,
) -> None:
    """Note what was asked for in the folder, which the caller has locked; nothing that was trained is overwritten.

    `resume` continues the same runs, `fresh` deletes the runs in the folder first. A folder that holds runs is refused
    without either. With a `share`, the caller has locked nothing else: `fresh` deletes its runs only.
    """
    out = store.folder
    if fresh and share is None:
        _clear(out)
    begun = any(out.glob("work/*/checkpoint.pt")) or bool(store.ids())
    if begun and not resume:
        raise WrongSettingsError(
            f"{out} already holds runs: add --resume to continue them, --fresh to delete them, or choose another --out."
        )
    before = requested_ids(out)  # none if the file is damaged: it is written anew
    asked = {**request, "ids": [run.run_id for run in runs], "runs": [run.as_dict() for run in runs]}
    if begun and before and before != asked["ids"]:
        all_of_them = ", delete them by --fresh without --shard" if fresh else ""
        raise WrongSettingsError(
            f"{out} holds other runs: repeat their settings{all_of_them}, or choose another --out."
        )
    if fresh and share is not None:
        own = {run.run_id for run in share}
        _refuse_groups_across_shares(store, own, own)
        _clear_share(store, own)
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


def _clear_share(store: Store, ids: set[str]) -> None:
    """Delete runs with these ids, begun ones included, and no others: other processes may be training them."""
    begun = [group.folder for group in begun_groups(store) if any(run.run_id in ids for run in group.runs)]
    for folder in (*begun, *(store.path(each) for each in store.ids() if each in ids)):
        if not folder.is_symlink() and not folder.parent.is_symlink():
            shutil.rmtree(folder)


def _refuse_groups_across_shares(store: Store, own: set[str], wanted: set[str]) -> None:
    """Raise if wanted runs of a share were begun together with runs of other shares, which have them, too."""
    for group in begun_groups(store):
        ids = {run.run_id for run in group.runs}
        if ids & wanted and ids - own and group.checkpoint.exists():
            raise WrongSettingsError(
                f"{store.folder} was begun with runs trained together that are now in several shares: continue it with "
                f"`{resume_command(store.folder)}` and no other flag, or delete all runs by --fresh without --shard."
            )


def requested_runs(request: dict[str, Json]) -> list[Settings]:
    """Return the runs of a request."""
    runs = request["runs"]
    assert isinstance(runs, list)
    try:
        return [Settings.of(each) for each in runs]
    except TypeError as error:
        raise WrongSettingsError(f"{REQUEST} was written by another version of aol: {error}.") from error


@dataclass
class Outcome:
    """What came of it: runs trained now, whether it stopped early, by SIGTERM, and runs that could not be trained."""

    trained: int = 0
    stopped: bool = False
    terminated: bool = False
    untrained: dict[str, str] = field(default_factory=dict)


def share_of(runs: Sequence[Settings], number: int, count: int, together: int | None = None) -> list[Settings]:
    """Return the share of `count` that has this `number`, from one: whole groups of at most `together` runs.

    It follows from what was asked for alone, and from nothing that is measured: processes and machines that do not
    communicate agree. With `together`, groups are those of one process.

    >>> from aol.lab.settings import grid
    >>> [[run.seed for run in share_of(grid({}, seed=range(5)), number, 2)] for number in (1, 2)]
    [[0, 1, 2], [3, 4]]
    """
    shares: list[set[str]] = [set() for _ in range(count)]
    for alike in groups(runs, len(runs)):
        equal = -(-len(alike) // count)
        for group in groups(alike, min(equal, together or equal)):
            min(shares, key=len).update(run.run_id for run in group)  # the first of the smallest
    return [run for run in runs if run.run_id in shares[number - 1]]


def left_to_train(store: Store) -> tuple[bool, list[tuple[int, int]]]:
    """Return whether `aol resume FOLDER` trains missing runs, and the shares, (i, n) each, that it does not start.

    It trains the shares that were started there; all runs where no shares were. The others were killed early, or are
    trained in other folders. Of several divisions, n is that of the share started last.
    """
    request: Any = read_request(store.folder) or {}
    options = request.get("options") or {}
    if not (started := options.get("shares")):
        return True, []
    runs, count = requested_runs(request), started[-1][1]
    missing = {run.run_id for run in runs if not is_complete(get_valid(store, run))}

    def lacks_runs(number: int, count: int) -> bool:
        return any(run.run_id in missing for run in share_of(runs, number, count, options.get("together")))

    others = [(number, count) for number in range(1, count + 1) if [number, count] not in started]
    return any(lacks_runs(*each) for each in started), [each for each in others if lacks_runs(*each)]


class Job:
    """What is left of a list of runs: planned one group at a time, so that a group that is too large can be split.

    `keep` names the readings by class to keep of every epoch (None: all), `require` those without which a run counts as
    missing. Shares follow from the order of `asked` (None: of the runs), and are planned one by one.
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
        asked: Sequence[Settings] | None = None,
    ) -> None:
        self.store, self.options, self.progress, self.keep = store, options, progress, keep
        self.outcome = Outcome()
        self._require = require
        self._complete: set[str] = set()
        self._limits: dict[object, int] = {}  # of runs together, where more were too many
        self._pace: Pace | None = None  # where time is limited
        self._aside: set[Path] = set()  # groups that do not fit on this device
        shares = [share_of(asked or runs, *each, options.together) for each in shares_of(options)] or [list(runs)]
        self._shares = [{run.run_id for run in share} for share in shares]
        self.runs = [run for run in runs if any(run.run_id in share for share in self._shares)]
        self._only = self._shares[0] if len(shares_of(options)) == 1 else None  # the rest may be another process's
        left = self.missing()
        if self._only is not None:
            _refuse_groups_across_shares(store, self._only, {run.run_id for run in left})
        self.pairs = open_data(left)
        check(left, self.pairs, options)
        self.tally = Tally(self.runs, left, self.pairs)

    def missing(self) -> list[Settings]:
        """Return the runs without a complete record, in their order."""
        found = []
        for run in self.runs:
            if run.run_id not in self._complete:
                if is_complete(self._record(run), self._require) and self._has_samples(run):
                    self._complete.add(run.run_id)
                else:
                    found.append(run)
        return found

    def _record(self, run: Settings) -> Run | None:
        """Return the record of a run; None if there is none, or a damaged one, which is reported once."""
        try:
            return read_valid(self.store, run)
        except DamagedRunError as error:
            path = self.store.path(run.run_id) / FILE
            self.progress.say_once(f"{path} is damaged and its run is trained again: {error}.")
            return None

    def _has_samples(self, run: Settings) -> bool:
        """Return whether the samples of a complete run can be read, where they are to be kept; say once why not."""
        if not self.options.keep_samples:
            return True
        folder = self.store.path(run.run_id)
        try:
            table = samples.read_samples(folder / samples.FILE, run.run_id)
            if table is not None:
                samples.read_ids(folder, len(table))
                return True
            why = f"{folder / samples.FILE} is missing"
        except DamagedRunError as error:
            why = str(error).rstrip(".")
        self.progress.say_once(f"{why}; its run is trained again.")
        return False

    def next_group(self, elsewhere: Sequence[RunGroup] = (), left: float = math.inf) -> RunGroup | None:
        """Return the next group to train: one that was begun, or a new one; None if nothing is left.

        `elsewhere` are groups that other workers train now. With a limit of time, a new group is one that ends in the
        `left` seconds, and None can also mean that there is none. If nothing else has been trained in this time, the
        first group is begun even if it does not end in time: it would never be trained otherwise.
        """
        taken = {run.run_id for group in elsewhere for run in group.runs} | self.outcome.untrained.keys()
        wanted = {run.run_id: run for run in self.missing() if run.run_id not in taken}
        for begun in begun_groups(self.store):
            ids = [run.run_id for run in begun.runs]
            if self._only is not None and self._only.isdisjoint(ids):  # another process may be training it
                continue
            if all(is_complete(get_valid(self.store, run)) for run in begun.runs) and wanted.keys().isdisjoint(ids):
                self.remove(begun)
            elif not wanted.keys().isdisjoint(ids) and begun.folder not in self._aside:
                if begun.checkpoint.exists():
                    return begun
                self.remove(begun)  # nothing was kept: planned again, as is wanted now
        if not wanted:
            return None
        planned = []
        for share in self._shares:
            left_of_it = [run for run_id, run in wanted.items() if run_id in share]
            planned += plan(left_of_it, self.pairs, self.options, self.progress, self._limits)
        if self.options.minutes is None:
            return new_group(planned[0], self.store)
        self._pace = self._pace or Pace(self.store, self.pairs, self.options.device)
        chosen = self._pace.first_that_fits(planned, left) or (planned[0] if self.outcome.trained == 0 else None)
        return None if chosen is None else new_group(chosen, self.store)

    def begin(self, group: RunGroup) -> None:
        """Note on disk that a group begins."""
        places = [self.store.path(run.run_id) for run in group.runs]
        for path in (place / name for place in places for name in (FILE, samples.FILE, samples.IDS)):
            if path.is_dir():  # else it would be noticed when the record is written, after the training
                raise UnusableFolderError(f"{path} is a folder in the place of a file: remove it.")
        for folder in (group.folder, *places):
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


# Time

# A group of R runs takes as long as R + 4 runs of a very large one: 64 runs of ResNet-32 2.5 s an epoch, one 0.17 s.
_OVERHEAD = 4
_SPARE = 1.15  # of the time that is estimated
_ALIKE = ("scenario", "data", "net", "precision", "batch_size", "image_size")


class Pace:
    """Estimates the seconds that a group of runs takes on this device.

    `t = (R + 4) · c · s`, where c is the mean work of its R runs and s the median seconds per work of complete runs in
    the store on the same kind of device: of runs that could be in the same group, else of runs with the same data and
    network, else of runs with the same network. Runs on data sets that are not open (`pairs`) are not used.
    """

    def __init__(self, store: Store, pairs: Mapping[str, AnyPair], device: torch.device) -> None:
        self._pairs, self._device = dict(pairs), versions(device)["device"]
        self._speeds: dict[object, list[float]] = {}
        self.learn(list(store))

    def learn(self, runs: Sequence[Run]) -> None:
        """Take complete runs into account."""
        known = []
        for run in runs:
            settings = settings_of(run) if run.finished and run.failed_at_epoch is None and run.seconds else None
            if settings and settings.data in self._pairs and run.versions.get("device") == self._device:
                known.append((run, settings))
        work = costs([settings for _, settings in known], self._pairs)
        for run, settings in known:
            assert run.seconds is not None
            whole = run.seconds * run.trained_together  # of the group
            speed = whole / ((run.trained_together + _OVERHEAD) * work[settings.run_id])
            for key in _keys(settings):
                self._speeds.setdefault(key, []).append(speed)

    def seconds(self, runs: Sequence[Settings]) -> float | None:
        """Return about how long the runs take as one group; None where no run like them is known."""
        speeds = next((self._speeds[key] for key in _keys(runs[0]) if key in self._speeds), None)
        if speeds is None:
            return None
        work = statistics.fmean(costs(runs, self._pairs).values())
        return _SPARE * (len(runs) + _OVERHEAD) * work * statistics.median(speeds)

    def first_that_fits(self, groups: Sequence[Sequence[Settings]], left: float) -> Sequence[Settings] | None:
        """Return the first group that ends in the seconds that are `left`, as far as is known; None if there is none.

        Groups are not cut: other groups would give other rounding.
        """
        return next((group for group in groups if (self.seconds(group) or 0.0) <= left), None)


def _keys(run: Settings) -> tuple[object, ...]:
    """Return what runs must share to tell how long others take, the most alike first."""
    return run.group_key, tuple(getattr(run, name) for name in _ALIKE), (run.net, run.precision)
