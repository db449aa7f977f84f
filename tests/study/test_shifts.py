"""Gains right after the head of a stream moved, and later: recomputed step by step from made-up curves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import record, study

from aol.engine.settings import Settings
from aol.study.reasons import reasons
from aol.study.records import Record
from aol.study.shifts import gains_after_shifts
from aol.study.spec import Study
from aol.study.table import Table, make_table

STEPS, PERIOD = 20, 5


def _plan(**common: object) -> Study:
    of = study(imbalances=(100, 10), rhos=(0.5,))
    stream = {"scenario": "stream", "stream": "shifting", "period": PERIOD, "epochs": STEPS, **common}
    return replace(of, common={**of.common, **stream}, paper=None)  # type: ignore[dict-item]


def _curve(run: Settings, dip: float) -> list[float]:
    """Age gains a point and, where the head has just moved, `dip` less; frequencies gain three points, then more."""
    start = 0.5 + 0.01 * run.seed + (0.2 if run.imbalance == 10 else 0.0)
    found = []
    for step in range(STEPS):
        moved, later = step % PERIOD == 0, step >= STEPS // 2
        gain = {"none": 0.0, "aol": 0.01 - dip * moved, "frequency": 0.05 if moved else 0.03}[run.weighting]
        found.append(start + (gain if later else 0.3))  # the first half must not count
    return found


def _made(of: Study, dip: float = 0.04, **changes: object) -> Table:
    def one(run: Settings) -> Record:
        made = record(run, 0.5, 0.5)
        return replace(made, curves={**made.curves, "test_accuracy": _curve(run, dip)}, **changes)  # type: ignore[arg-type]

    return make_table(of, {run: one(run) for run in of.all_runs()})


def test_gains_are_told_apart_by_their_place_in_the_period() -> None:
    table = _made(_plan())
    found = gains_after_shifts(table, "aol", table.study.cells_list())
    assert found is not None
    assert len(found.pairs) == 2 * 3
    assert found.first == pytest.approx(-0.03)
    assert found.rest == pytest.approx(0.01)
    said = "\n".join(reasons(table, []))
    assert (
        "At the first step after the head moved, one in 5, aol has −3.00 points over none; at the other steps +1.00 "
        "(second half of the stream; lower at the first in 6 of 6 runs). There frequency +5.00 and +3.00. What aol "
        "weighs by at that step comes from the tail before it."
    ) in said


def test_no_cause_is_named_where_the_first_step_is_not_lower() -> None:
    said = "\n".join(reasons(_made(_plan(), dip=-0.01), []))
    assert "aol has +2.00 points over none; at the other steps +1.00" in said
    assert "lower at the first in 0 of 6 runs" in said
    assert "comes from the tail before" not in said


@pytest.mark.parametrize(
    "other", [{"period": 1}, {"stream": "access", "fraction": 0.5}, {"scenario": "offline"}, {"period": STEPS}]
)
def test_nothing_is_said_where_no_head_moves_or_at_every_step(other: dict[str, object]) -> None:
    table = _made(_plan(**other))
    assert gains_after_shifts(table, "aol", table.study.cells_list()) is None
    assert "head moved" not in "\n".join(reasons(table, []))


def test_steps_without_a_reading_are_left_out() -> None:
    of = _plan(eval_every=5)
    table = _made(of)
    thin = {
        run: replace(made, curves={**made.curves, "test_accuracy": [None, None, None, None, 0.5] * 4})
        for run, made in table.records.items()
    }
    assert gains_after_shifts(make_table(of, thin), "aol", of.cells_list()) is None
