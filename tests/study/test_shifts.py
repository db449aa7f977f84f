"""Gains right after the head of a stream moved, and later: recomputed step by step from made-up curves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aol.engine.settings import Settings
from aol.study.reasons import reasons
from aol.study.records import Record
from aol.study.shifts import gains_after_shifts
from aol.study.spec import Method, Study
from aol.study.table import Table, make_table
from tests.support.made_up import record, study

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
        "At the first step after the head moved, one in 5, aol has −3.00 points over none (−3.00 to −3.00 by cell); "
        "at the other steps +1.00 (+1.00 to +1.00 by cell). That is over the second half of the stream; the first is "
        "lower in 6 of 6 runs. Others there: frequency +5.00 and +3.00. A possible cause, not tested here: aol weighs "
        "at that step by what the tail before it left."
    ) in said


def test_no_cause_is_named_where_the_first_step_is_not_lower() -> None:
    said = "\n".join(reasons(_made(_plan(), dip=-0.01), []))
    assert "aol has +2.00 points over none (+2.00 to +2.00 by cell); at the other steps +1.00" in said
    assert "the first is lower in 0 of 6 runs." in said
    assert "possible cause" not in said


def test_one_run_is_called_one_and_names_no_cause() -> None:
    of = replace(_plan(), seeds=(1,), cells={"imbalance": (100,)})
    said = "\n".join(reasons(_made(of), []))
    assert (
        "aol has −3.00 points over none; at the other steps +1.00. "
        "That is over the second half of the stream, in one run."
    ) in said
    assert "possible cause" not in said


def test_the_other_steps_count_alike_where_a_period_is_cut_short() -> None:
    """Of steps 12 to 23 with a period of 5: places 2 to 5 come 3, 3, 2 and 2 times, and each time counts."""
    of = _plan(epochs=23)

    def one(run: Settings) -> Record:
        made = record(run, 0.5, 0.5)
        curve = [0.5 + (0.01 * (step % PERIOD) if run.weighting == "aol" else 0.0) for step in range(23)]
        return replace(made, curves={**made.curves, "test_accuracy": curve})

    table = make_table(of, {run: one(run) for run in of.all_runs()})
    found = gains_after_shifts(table, "aol", of.cells_list())
    assert found is not None
    assert found.rest == pytest.approx(0.01 * (3 * 1 + 3 * 2 + 2 * 3 + 2 * 4) / 10)


def test_gains_of_other_cells_and_seeds_do_not_stand_beside() -> None:
    """Age has seeds 1 and 2, frequencies 1 and 3: as many runs, and not the same."""
    of = replace(_plan(), cells={"imbalance": (100,)})
    made = {
        run: each
        for run, each in _made(of).records.items()
        if (run.weighting, run.seed) not in {("aol", 3), ("frequency", 2)}
    }
    said = "\n".join(reasons(make_table(of, made), []))
    assert "aol has −3.00 points" in said
    assert "frequency +5.00" not in said


def test_a_judged_method_without_a_whole_seed_has_nothing_said_of_it() -> None:
    of = _plan()
    more = Method("aol-more", {"weighting": "aol", "mechanism": "resample"}, {"rho": (0.1, 0.5)})
    table = make_table(replace(of, methods=(*of.methods, more)), _made(of).records)
    assert [each.claim.method for each in table.verdicts] == ["aol", "aol-more"]
    assert "aol has −3.00 points" in "\n".join(reasons(table, []))


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
