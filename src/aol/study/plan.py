"""Where a study stands: which of its runs have a record, which are under way, which are missing; how much work is left.

Reads a folder and writes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aol.engine.loop import pool
from aol.engine.settings import Settings, memory_capacity
from aol.engine.source import AnyPair
from aol.longtail import long_tail_counts
from aol.study.claims import Claims, Held
from aol.study.recording import can_keep_ages
from aol.study.records import DamagedRecordError, Record, Store
from aol.study.spec import Cell, Study


@dataclass
class Standing:
    """Where a study stands, by run id; `damaged` also says which file, and why it is not used."""

    runs: dict[str, Settings]
    done: set[str] = field(default_factory=set)
    failed: dict[str, int] = field(default_factory=dict)  # those of the done that diverged, and at which epoch
    damaged: dict[str, tuple[Path, str]] = field(default_factory=dict)
    under_way: set[str] = field(default_factory=set)
    left_behind: set[str] = field(default_factory=set)  # begun by a process that is gone: to be gone on with
    stacks: list[Held] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """The runs that are neither done nor begun, in the order of the study."""
        taken = self.done | self.under_way | self.left_behind
        return [name for name in self.runs if name not in taken]


def standing(study: Study, store: Store, claims: Claims) -> Standing:
    """Return where a study stands."""
    found = Standing({run.run_id: run for run in study.all_runs()})
    for name in found.runs:
        try:
            record = store.read(name)
        except DamagedRecordError as error:
            found.damaged[name] = (store.path(name), str(error))
            continue
        if record is not None and enough(record, study.keep):
            found.done.add(name)
            if record.failed_at_epoch:
                found.failed[name] = record.failed_at_epoch
    for held in claims.look():
        names = {run.run_id for run in held.stack.runs} & set(found.runs) - found.done
        if names:
            found.stacks.append(held)
            (found.left_behind if held.alive is False else found.under_way).update(names)
    return found


def enough(record: Record, keep: Iterable[str]) -> bool:
    """Whether a record holds all that a study keeps, as far as a run of its settings can."""
    return set(keep) <= set(record.over_time) or not can_keep_ages(record.settings)


def by_cell(study: Study, names: Iterable[str]) -> list[tuple[Cell, int, int]]:
    """Return each cell with how many of its runs are among these, and how many it has."""
    some = set(names)
    found = []
    for cell in study.cells_list():
        runs = {run.run_id for method in study.methods for run in study.runs(cell, method)}
        baseline = study.method(study.baseline)
        runs |= {run.run_id for run in study.runs(cell, baseline, study.extra_seeds)}
        found.append((cell, len(runs & some), len(runs)))
    return found


def costs(runs: Sequence[Settings], pairs: dict[str, AnyPair]) -> dict[str, float]:
    """Return about how much work each run is, by its id: images through the network, a training step counted thrice."""
    sized = functools.cache(lambda key: _images(key, pairs[key.data]))
    return {run.run_id: run.epochs * sized(_as_drawn(run)) for run in runs}


def _as_drawn(run: Settings) -> Settings:
    """Return settings that are the same for all runs whose sets are of one size."""
    return Settings(
        scenario=run.scenario,
        data=run.data,
        imbalance=run.imbalance,
        profile=run.profile,
        validation=run.validation,
        fraction=run.fraction,
        stream=run.stream,
        memory=run.memory,
    )


def _images(run: Settings, pair: AnyPair) -> float:
    labels = pair.train.labels
    kept, held = pool(run, labels)
    shown = looked = float(kept.numel())
    if run.scenario == "arrival":
        shown = looked = run.fraction * kept.numel()
    elif run.scenario == "stream":
        looked = min(memory_capacity(run.memory) or kept.numel(), kept.numel())
        if run.stream == "access":
            shown = run.fraction * kept.numel()
        else:
            assert run.imbalance is not None
            smallest = int(labels[kept].bincount().min())
            shown = float(sum(long_tail_counts(smallest, pair.num_classes, run.imbalance, profile=run.profile)))
    return 3 * shown + looked + pair.test.labels.numel() + held.numel()
