"""Gains right after the head of a stream moved, and later: recomputed step by step from made-up curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aol.lab.settings import Settings
from aol.lab.study.comparisons import StudyResults
from aol.lab.study.shifts import gains_after_shifts
from aol.lab.study.spec import Method, Study
from aol.lab.study.tables import checks
from aol.records.record import Floats, Run
from tests.support.made_up import record, results, study

STEPS, PERIOD = 20, 5


def _plan(**common: object) -> Study:
    of = study(imbalances=(100, 10), rhos=(0.5,))
    stream = {"scenario": "stream", "stream": "shifting", "period": PERIOD, "epochs": STEPS, **common}
    return replace(of, common={**of.common, **stream}, paper=None)  # type: ignore[dict-item]


def _curve(run: Settings, dip: float) -> Floats:
    """Age gains a point and, where the head has just moved, `dip` less; frequencies gain three points, then more."""
    start = 0.5 + 0.01 * run.seed + (0.2 if run.imbalance == 10 else 0.0)
    found = []
    for step in range(STEPS):
        moved, later = step % PERIOD == 0, step >= STEPS // 2
        gain = {"none": 0.0, "aol": 0.01 - dip * moved, "frequency": 0.05 if moved else 0.03}[run.weighting]
        found.append(start + (gain if later else 0.3))  # the first half must not count
    return np.array(found)


def _made(of: Study, dip: float = 0.04, **changes: object) -> StudyResults:
    def one(run: Settings) -> Run:
        made = record(run, 0.5, 0.5)
        return replace(made, curves={**made.curves, "test_accuracy": _curve(run, dip)}, **changes)  # type: ignore[arg-type]

    return results(of, {run: one(run) for run in of.all_runs()})


def _records(table: StudyResults) -> dict[Settings, Run]:
    return {Settings(**run.settings): run for run in table.frame.runs.values()}  # type: ignore[arg-type]


def _shown(table: StudyResults) -> list[list[str]]:
    """Return the rows of the table of gains after a shift."""
    found = [each.frame.to_numpy().tolist() for each in checks(table) if "head moved" in each.title]
    return found[0] if found else []


def test_gains_are_told_apart_by_their_place_in_the_period() -> None:
    table = _made(_plan())
    found = gains_after_shifts(table, "aol", table.study.cells_list())
    assert found is not None
    assert len(found.gains) == 2 * 3
    assert found.gains["first"].mean() == pytest.approx(-0.03)
    assert found.gains["rest"].mean() == pytest.approx(0.01)
    assert _shown(table) == [
        ["aol", "−3.00 (−3.00 to −3.00)", "+1.00 (+1.00 to +1.00)", "6 of 6", "previous step"],
        ["frequency", "+5.00 (+5.00 to +5.00)", "+3.00 (+3.00 to +3.00)", "0 of 6", "counts"],
    ]


def test_one_cell_has_no_range() -> None:
    of = replace(_plan(), seeds=(1,), cells={"imbalance": (100,)})
    assert _shown(_made(of))[0] == ["aol", "−3.00", "+1.00", "1 of 1", "previous step"]


def test_the_other_steps_count_alike_where_a_period_is_cut_short() -> None:
    """Of steps 12 to 23 with a period of 5: places 2 to 5 come 3, 3, 2 and 2 times, and each time counts."""
    of = _plan(epochs=23)

    def one(run: Settings) -> Run:
        made = record(run, 0.5, 0.5)
        curve = np.array([0.5 + (0.01 * (step % PERIOD) if run.weighting == "aol" else 0.0) for step in range(23)])
        return replace(made, curves={**made.curves, "test_accuracy": curve})

    table = results(of, {run: one(run) for run in of.all_runs()})
    found = gains_after_shifts(table, "aol", of.cells_list())
    assert found is not None
    assert found.gains["rest"].mean() == pytest.approx(0.01 * (3 * 1 + 3 * 2 + 2 * 3 + 2 * 4) / 10)


def test_gains_of_other_cells_and_seeds_do_not_stand_beside() -> None:
    """Age has seeds 1 and 2, frequencies 1 and 3: as many runs, and not the same."""
    of = replace(_plan(), cells={"imbalance": (100,)})
    made = {
        run: each
        for run, each in _records(_made(of)).items()
        if (run.weighting, run.seed) not in {("aol", 3), ("frequency", 2)}
    }
    assert [row[0] for row in _shown(results(of, made))] == ["aol"]


def test_a_judged_method_without_a_whole_seed_has_nothing_said_of_it() -> None:
    of = _plan()
    more = Method("aol-more", {"weighting": "aol", "mechanism": "resample"}, {"rho": (0.1, 0.5)})
    table = results(replace(of, methods=(*of.methods, more)), _records(_made(of)))
    assert [each.method for each in table.verdicts] == ["aol", "aol-more"]
    assert [row[0] for row in _shown(table)] == ["aol", "frequency"]


@pytest.mark.parametrize(
    "other", [{"period": 1}, {"stream": "access", "fraction": 0.5}, {"scenario": "offline"}, {"period": STEPS}]
)
def test_nothing_is_said_where_no_head_moves_or_at_every_step(other: dict[str, object]) -> None:
    table = _made(_plan(**other))
    assert gains_after_shifts(table, "aol", table.study.cells_list()) is None
    assert _shown(table) == []


def test_steps_without_a_reading_are_left_out() -> None:
    of = _plan(eval_every=5)
    table = _made(of)
    thin = {
        run: replace(made, curves={**made.curves, "test_accuracy": np.array([np.nan, np.nan, np.nan, np.nan, 0.5] * 4)})
        for run, made in _records(table).items()
    }
    assert gains_after_shifts(results(of, thin), "aol", of.cells_list()) is None
