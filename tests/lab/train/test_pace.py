"""Which groups are trained in a limited time, and how long they are thought to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.lab.settings import Settings
from aol.lab.train.driver import train as train_all
from aol.lab.train.groups import ExecutionOptions
from aol.lab.train.job import Outcome, Pace
from aol.lab.train.progress import Silent, costs
from aol.records.record import Run, versions
from aol.records.store import Store
from tests.support.tiny_runs import CPU, settings, tiny_pair

PAIRS = {"tiny": tiny_pair()}
OPTIONS = ExecutionOptions(CPU, together=8)


def recorded(run: Settings, seconds: float, *, together: int = 1, device: str | None = None) -> Run:
    """Return the record of a run that took so long, if it had been trained."""
    curve = np.full(run.epochs, 0.5)
    return Run(
        id=run.run_id,
        method=run.method,
        seed=run.seed,
        settings=run.as_dict(),
        classes=list(PAIRS["tiny"].classes),
        counts=None,
        epochs=np.arange(1, run.epochs + 1),
        curves={"test_accuracy": curve},
        by_class={"test_accuracy": np.full(len(PAIRS["tiny"].classes), 0.5)},
        planned=run.epochs,
        finished=True,
        seconds=seconds,
        trained_together=together,
        versions={**versions(CPU), **({} if device is None else {"device": device})},
    )


def pace_of(folder: Path, *runs: Run) -> Pace:
    store = Store(folder)
    for run in runs:
        store.write(run)
    return Pace(store, PAIRS, CPU)


def test_a_group_takes_what_like_runs_took_and_a_little_more(tmp_path: Path) -> None:
    like = settings(seed=9)
    pace = pace_of(tmp_path, recorded(like, 2.0, together=8))
    found = [pace.seconds([settings(seed=seed) for seed in range(count)]) for count in (1, 8, 20)]
    assert found == pytest.approx([1.15 * 16.0 * (count + 4) / 12 for count in (1, 8, 20)])  # 16 s for 8 of them
    longer = pace.seconds([settings(epochs=2 * like.epochs)])
    assert longer == pytest.approx(2 * found[0])


def test_the_most_alike_runs_count_and_other_devices_do_not(tmp_path: Path) -> None:
    other = settings(imbalance=2.0, seed=9)
    pace = pace_of(
        tmp_path,
        recorded(other, 50.0),
        recorded(settings(seed=8), 1.0),
        recorded(settings(seed=7), 9.0, device="a GPU"),
    )
    assert pace.seconds([settings()]) == pytest.approx(1.15)  # of its own group
    third = settings(imbalance=1.0)  # of no known group: the median of runs with its data and network
    work = costs([other, settings(), third], PAIRS)
    speeds = [50.0 / work[other.run_id], 1.0 / work[settings().run_id]]
    assert pace.seconds([third]) == pytest.approx(1.15 * np.median(speeds) * work[third.run_id])
    assert pace_of(tmp_path / "empty").seconds([settings()]) is None


class Known(Pace):
    """A pace at which every run takes ten seconds."""

    def seconds(self, runs: Sequence[Settings]) -> float:
        return 10.0 * len(runs)


def test_the_first_group_that_ends_in_time_is_chosen(tmp_path: Path) -> None:
    pace = Known(Store(tmp_path), PAIRS, CPU)
    large, small = [settings(seed=seed) for seed in range(6)], [settings(imbalance=2.0, seed=seed) for seed in range(4)]
    chosen = {left: pace.first_that_fits([large, small], left) for left in (60, 50, 39)}
    assert chosen == {60: large, 50: small, 39: None}


def train(runs: list[Settings], folder: Path, **options: object) -> Outcome:
    return train_all(runs, Store(folder), lambda _: PAIRS, replace(OPTIONS, **options), Silent())


def test_what_cannot_end_in_time_is_not_begun(tmp_path: Path) -> None:
    slow, quick = ([settings(imbalance=value, epochs=2, seed=seed) for seed in (0, 1)] for value in (2.0, 3.0))
    store = Store(tmp_path)
    store.write(recorded(replace(slow[0], seed=9), 1000.0))
    store.write(recorded(replace(quick[0], seed=9), 0.01))
    outcome = train([*slow, *quick], tmp_path, minutes=1.0)
    assert (outcome.trained, outcome.stopped) == (2, True)
    done = {run.id for run in store if run.finished}
    assert {run.run_id for run in quick} <= done
    assert not {run.run_id for run in slow} & done
    assert not list(tmp_path.glob("work/*"))
    outcome = train([*slow, *quick], tmp_path, minutes=1.0)  # nothing else is left: begun, although it seems too long
    assert (outcome.trained, outcome.stopped) == (2, False)
