"""The lines of a table: what counts, what is chosen, what is missing; against sums by hand."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from aol.engine.settings import Settings
from aol.study.lines import Line, lines, shown
from aol.study.records import Record
from aol.study.spec import load
from tests.support.made_up import luck, record, records, study


def _draw(run: Settings) -> tuple[float, float]:
    test = 0.7 + 0.02 * luck(run)
    return test, test + 0.01 * luck(run, salt=1)


def _line(made: list[Line], method: str) -> Line:
    (found,) = [line for line in made if line.method == method]
    return found


def test_each_seed_is_judged_by_the_setting_that_the_others_choose() -> None:
    plan = study(seeds=(1, 2, 3, 4))
    known = records(plan.all_runs(), _draw)
    line = _line(lines(plan, known, "tail_mean"), "aol")
    method, (cell,) = plan.method("aol"), plan.cells_list()
    values, gains, choices = [], [], []
    for seed in plan.seeds:
        means = {}
        for variant in method.variants():
            others = [known[plan.run(cell, method, variant, other)] for other in plan.seeds if other != seed]
            means[variant["rho"]] = statistics.fmean(_draw(each.settings)[1] for each in others)
        rho = max(means, key=lambda each: means[each])
        value = _draw(plan.run(cell, method, {"rho": rho}, seed))[0]
        values.append(value)
        choices.append(f"ρ={rho}")
        gains.append(value - _draw(plan.run(cell, plan.method("none"), {}, seed))[0])
    assert line.values == pytest.approx(values)
    assert line.differences == pytest.approx(gains)
    assert line.choices == tuple(choices)
    assert line.gain is not None
    assert line.gain.mean == pytest.approx(statistics.fmean(gains))
    assert (line.settings, line.planned, line.seeds) == (3, 4, (1, 2, 3, 4))


def test_test_accuracy_has_no_say_in_the_choice() -> None:
    plan = study()
    before = _line(lines(plan, records(plan.all_runs(), _draw), "tail_mean"), "aol")
    other = records(plan.all_runs(), lambda run: (luck(run, salt=9), _draw(run)[1]))
    after = _line(lines(plan, other, "tail_mean"), "aol")
    assert (after.choices, after.setting) == (before.choices, before.setting)
    assert after.values != before.values


def _without(known: dict[Settings, Record], **wanted: object) -> dict[Settings, Record]:
    gone = [run for run in known if all(getattr(run, name) == value for name, value in wanted.items())]
    assert gone
    return {run: each for run, each in known.items() if run not in gone}


def test_a_seed_with_a_hole_in_the_grid_does_not_count() -> None:
    plan = study()
    known = _without(records(plan.all_runs(), _draw), weighting="aol", rho=0.5, seed=2)
    made = lines(plan, known, "tail_mean")
    line = _line(made, "aol")
    assert (line.seeds, line.planned, line.runs, line.runs_planned) == ((1, 3), 3, 8, 9)
    assert _line(made, "frequency").seeds == (1, 2, 3)


def test_half_a_grid_gives_no_figure_at_all() -> None:
    plan = study()
    known = _without(records(plan.all_runs(), _draw), weighting="aol", rho=0.9)
    line = _line(lines(plan, known, "tail_mean"), "aol")
    assert (line.seeds, line.values, line.gain, line.optimistic, line.setting) == ((), (), None, None, "")
    assert (line.runs, line.runs_planned) == (6, 9)


def test_a_seed_without_its_baseline_does_not_count() -> None:
    plan = study()
    known = _without(records(plan.all_runs(), _draw), weighting="none", seed=3)
    assert _line(lines(plan, known, "tail_mean"), "frequency").seeds == (1, 2)


def test_nothing_run_is_nothing_told() -> None:
    plan = study()
    for line in lines(plan, {}, "tail_mean"):
        assert (line.seeds, line.runs, line.gain, line.mean, line.spread) == ((), 0, None, None, None)


def test_a_grid_without_validation_is_not_chosen_from_but_one_setting_needs_no_choice() -> None:
    plan = study()
    made = lines(plan, {run: record(run, 0.5) for run in plan.all_runs()}, "tail_mean")
    assert _line(made, "aol").problem == "no validation accuracy to choose by: give the study a validation part"
    assert _line(made, "aol").values == ()
    assert _line(made, "frequency").gain is not None


def test_a_run_that_diverged_counts_as_chance_and_is_counted() -> None:
    plan = study()
    known = records(plan.all_runs(), _draw)
    (cell,) = plan.cells_list()
    run = plan.run(cell, plan.method("frequency"), {}, 2)
    known[run] = replace(known[run], failed_at_epoch=3)
    line = _line(lines(plan, known, "tail_mean"), "frequency")
    assert line.failed == 1
    assert line.values[1] == pytest.approx(0.1)


def test_settings_that_make_the_same_run_are_one_try() -> None:
    plan = study()
    twice = replace(plan.method("frequency"), grid={"rho": (0.1, 0.2)})  # rho is nothing to frequency weights
    plan = replace(plan, methods=(plan.method("none"), twice))
    line = _line(lines(plan, records(plan.all_runs(), _draw), "tail_mean"), "frequency")
    assert (line.settings, line.runs, line.runs_planned) == (1, 3, 3)


def test_the_best_on_test_has_the_baseline_of_its_own_seed_as_one_try() -> None:
    plan = study()
    known = records(plan.all_runs(), _draw)
    found = _line(lines(plan, known, "tail_mean"), "aol").optimistic
    assert found is not None
    (cell,) = plan.cells_list()
    best = []
    for seed in plan.seeds:
        runs = [plan.run(cell, plan.method("aol"), variant, seed) for variant in plan.method("aol").variants()]
        best.append(max(_draw(run)[0] for run in (*runs, plan.run(cell, plan.method("none"), {}, seed))))
    assert (found.tries, found.mean) == (4, pytest.approx(statistics.fmean(best)))
    assert found.baseline.runs == 6  # three seeds, and as many more as the grid has settings
    assert not found.baseline.extrapolated
    assert _line(lines(plan, known, "tail_mean"), "frequency").optimistic is None


def test_plain_runs_that_two_memories_share_are_one_try_of_both() -> None:
    plan = load("limited-access").only(imbalance=[100])
    known = records(plan.all_runs(), _draw)
    found = [line for line in lines(plan, known, "second_half_mean") if line.method == "aol"]
    plain = _draw(plan.run(plan.cells_list()[0], plan.method("none"), {}, 42))[0]
    assert [line.cell["memory"] for line in found] == ["all", "reservoir:10000"]
    for line in found:
        grid = [_draw(run)[0] for run in plan.runs(line.cell, plan.method("aol"))]
        assert line.optimistic is not None
        assert line.optimistic.tries == 11
        assert line.optimistic.mean == pytest.approx(max(plain, *grid))
        assert line.optimistic.baseline.runs == 11  # seed 42 and ten more, which both memories share


def test_the_paper_stands_beside_its_cell() -> None:
    plan = study(imbalances=(100, 17))
    made = lines(plan, {}, "tail_mean")
    by_cell = {(line.cell["imbalance"], line.method): line for line in made}
    assert by_cell[100, "none"].paper is not None
    assert by_cell[100, "none"].paper.accuracy == pytest.approx(0.7220)
    assert by_cell[100, "aol"].paper_gain is not None
    assert by_cell[100, "none"].paper_gains is None
    assert by_cell[100, "frequency"].paper is None
    assert by_cell[17, "aol"].paper is None


def test_settings_are_shown_in_a_few_signs() -> None:
    assert shown({}) == ""
    assert shown({"beta": 0.9999}) == "β=0.9999"
    assert shown({"power": 1.0, "temper": 0.5}) == "p=1 temper 0.5"
