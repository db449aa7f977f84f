"""How long groups of runs take here, from complete runs: which of them fit into the time that is left."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch

from aol.engine.settings import Settings
from aol.engine.source import AnyPair
from aol.runs.progress import costs
from aol.runs.record import Run, versions
from aol.runs.store import Store
from aol.runs.validate import settings_of

# A group of R runs takes as long as R + 4 runs of a very large one: 64 runs of ResNet-32 2.5 s an epoch, one 0.17 s.
_OVERHEAD = 4
_SPARE = 1.15  # of the time that is estimated
_ALIKE = ("scenario", "data", "net", "precision", "batch_size", "image_size")


class Pace:
    """Estimates the seconds that a group of runs takes on this device.

    `t = (R + 4) · c · s`, where c is the mean work of its R runs and s the median seconds per work of complete runs in
    the store on the same kind of device: of runs that could be in the same group, else of runs with the same data and
    network, else of runs with the same network.

    Args:
        store: where complete runs are.
        pairs: the data sets that are open; runs on others are not used.
        device: where to train.
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

    def fits(self, runs: Sequence[Settings], seconds: float) -> bool:
        """Return whether the runs can be trained as one group in this time, as far as is known."""
        needed = self.seconds(runs)
        return needed is None or needed <= seconds


def that_fits(
    groups: Sequence[Sequence[Settings]], pace: Pace, left: float, *, first: bool
) -> Sequence[Settings] | None:
    """Return the group to train in the seconds that are `left`: the first that ends in time; None if there is none.

    Groups are not cut: other groups would give other rounding. `first` says that nothing else has been trained in this
    time: then the first group is begun even if it does not end in time, for it would never be trained otherwise.
    """
    return next((group for group in groups if pace.fits(group, left)), groups[0] if first else None)


def _keys(run: Settings) -> tuple[object, ...]:
    """Return what runs must share to tell how long others take, the most alike first."""
    return run.group_key, tuple(getattr(run, name) for name in _ALIKE), (run.net, run.precision)
