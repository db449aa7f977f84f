"""Methods in cells: what counts, what is chosen, what is missing, against sums by hand; and a study as a whole."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aol.lab.settings import Settings
from aol.lab.study.results import StudyResults, finished_runs, study_results
from aol.lab.study.spec import Study
from aol.lab.study.stats import best_of_k
from aol.records.record import Run
from aol.stats import holm
from tests.support.made_up import luck, record, records, results, study, write


def _draw(run: Settings) -> tuple[float, float]:
    test = 0.7 + 0.02 * luck(run)
    return test, test + 0.01 * luck(run, salt=1)


@dataclass
class Line:
    """A row of the gains, with the values and gains of its complete seeds."""

    row: Any
    values: list[float]
    differences: list[float]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.row, name)


def lines(table: StudyResults) -> list[Line]:
    chosen = table.values[table.values["chosen"]].groupby(["cell", "method"])
    made = []
    for row in table.gains.itertuples():
        known = (row.cell, row.method) in chosen.groups
        own = chosen.get_group((row.cell, row.method)) if known else table.values[:0]
        made.append(Line(row, own["value"].tolist(), own["gain"].tolist()))
    return made


def _lines(plan: Study, known: dict[Settings, Run], figure: str = "tail_mean") -> list[Line]:
    return lines(results(plan, known, figure))


def _line(made: list[Line], method: str) -> Line:
    (own,) = [line for line in made if line.method == method]
    return own


def test_each_seed_is_judged_by_the_setting_that_the_others_choose() -> None:
    plan = study(seeds=(1, 2, 3, 4))
    known = records(plan.all_runs(), _draw)
    line = _line(_lines(plan, known), "aol")
    method, (cell,) = plan.method("aol"), plan.cells_list()
    values, gains, choices = [], [], []
    for seed in plan.seeds:
        means = {}
        for variant in method.variants():
            others = [known[plan.run(cell, method, variant, other)] for other in plan.seeds if other != seed]
            means[variant["rho"]] = statistics.fmean(_draw(Settings(**each.settings))[1] for each in others)
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


def _without(known: dict[Settings, Run], **wanted: object) -> dict[Settings, Run]:
    gone = [run for run in known if all(getattr(run, name) == value for name, value in wanted.items())]
    assert gone
    return {run: each for run, each in known.items() if run not in gone}


@pytest.mark.parametrize(
    ("gone", "method", "seeds", "runs"),
    [
        ({"weighting": "aol", "rho": 0.5, "seed": 2}, "aol", (1, 3), (8, 9)),
        ({"weighting": "aol", "rho": 0.9}, "aol", (), (6, 9)),  # half a grid gives no figure at all
        ({"weighting": "none", "seed": 3}, "frequency", (1, 2), (3, 3)),
    ],
)
def test_a_seed_with_a_hole_in_its_grid_or_without_its_baseline_does_not_count(
    gone: dict[str, object], method: str, seeds: tuple[int, ...], runs: tuple[int, int]
) -> None:
    plan = study()
    line = _line(_lines(plan, _without(records(plan.all_runs(), _draw), **gone)), method)
    assert (line.seeds, line.planned, (line.runs, line.runs_planned)) == (seeds, 3, runs)
    assert (line.gain is None, line.values == [], math.isnan(line.mean)) == (not seeds,) * 3


def test_a_grid_without_validation_is_not_chosen_from_but_one_setting_needs_no_choice() -> None:
    plan = study()
    made = _lines(plan, {run: record(run, 0.5) for run in plan.all_runs()})
    assert (
        _line(made, "aol").problem == "no validation accuracy to choose a setting by: give the study a validation part"
    )
    assert _line(made, "aol").values == []
    assert _line(made, "frequency").gain is not None


def test_a_run_that_diverged_counts_as_chance_and_is_counted() -> None:
    plan = study()
    known = records(plan.all_runs(), _draw)
    (cell,) = plan.cells_list()
    run = plan.run(cell, plan.method("frequency"), {}, 2)
    known[run] = replace(known[run], failed_at_epoch=3)
    line = _line(_lines(plan, known), "frequency")
    assert line.failed == 1
    assert line.values[1] == pytest.approx(0.1)


def test_settings_that_make_the_same_run_are_one_try() -> None:
    plan = study()
    twice = replace(plan.method("frequency"), grid={"rho": (0.1, 0.2)})  # rho is nothing to frequency weights
    plan = replace(plan, methods=(plan.method("none"), twice))
    line = _line(_lines(plan, records(plan.all_runs(), _draw)), "frequency")
    assert (line.settings, line.runs, line.runs_planned) == (1, 3, 3)


def test_the_best_on_test_has_the_baseline_of_its_own_seed_as_one_try() -> None:
    plan = study()
    known = records(plan.all_runs(), _draw)
    line = _line(_lines(plan, known), "aol")
    (cell,) = plan.cells_list()
    best = []
    for seed in plan.seeds:
        runs = [plan.run(cell, plan.method("aol"), variant, seed) for variant in plan.method("aol").variants()]
        best.append(max(_draw(run)[0] for run in (*runs, plan.run(cell, plan.method("none"), {}, seed))))
    assert (line.k, line.best) == (4, pytest.approx(statistics.fmean(best)))
    pool = [_draw(run)[0] for run in plan.cell_runs(cell) if run.weighting == "none"]
    assert len(pool) == 6  # three seeds, and as many more as the grid has settings
    assert line.best_of_k == best_of_k(pool, 4)
    assert math.isnan(_line(_lines(plan, known), "frequency").k)


def test_the_paper_stands_beside_its_cell() -> None:
    plan = study(imbalances=(100, 17))
    made = _lines(plan, {})
    by_cell = {(plan.cells_list()[line.cell]["imbalance"], line.method): line for line in made}
    assert by_cell[100, "none"].paper is not None
    assert by_cell[100, "none"].paper.accuracy == pytest.approx(0.7220)
    assert by_cell[100, "aol"].paper_gain == pytest.approx(0.0154)
    assert math.isnan(by_cell[100, "none"].paper_gain)
    assert by_cell[100, "frequency"].paper is None
    assert by_cell[17, "aol"].paper is None


# A study as a whole


def _known(plan: Study) -> dict[Settings, Run]:
    return records(plan.all_runs(), _draw)


def test_p_values_are_corrected_over_all_lines_that_have_a_test() -> None:
    plan = study(imbalances=(100, 50))
    table = results(plan, _known(plan))
    gains = table.gains["gain"].dropna()
    assert table.gains["p"].dropna().tolist() == pytest.approx(holm([gain.p for gain in gains]))
    assert len(gains) == 4  # two cells, two methods besides the baseline


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ("second_half_mean", "figure second_half_mean is for streams"),
        ("accuracy", "figure must be one of last, tail_mean"),
        ("worst_clas", "worst_class.*Did you mean 'worst_class'"),
        ("worst_class_second_half_mean", "is for streams"),
    ],
)
def test_a_figure_that_the_study_has_not_is_refused(figure: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        results(study(), {}, figure=figure)


def test_a_measure_is_judged_by_its_own_curve_and_the_paper_has_no_part_in_it() -> None:
    plan = study()
    known = records(plan.all_runs(), _draw)
    worst = {run: 0.2 + 0.02 * luck(run, salt=3) + 0.1 * (run.weighting == "aol") for run in known}
    for run, each in known.items():
        each.curves["test_worst_class"] = np.full(run.epochs, worst[run])
    by_accuracy, found = results(plan, known), results(plan, known, "worst_class")
    assert found.figure == "worst_class_tail_mean"
    assert by_accuracy.gains["paper"].notna().any()
    assert found.gains[["paper", "paper_gain"]].isna().all(axis=None)
    frequency = _line(lines(found), "frequency")
    (cell,) = plan.cells_list()
    own, base = ([plan.run(cell, plan.method(name), {}, seed) for seed in plan.seeds] for name in ("frequency", "none"))
    assert frequency.values == pytest.approx([worst[run] for run in own])
    assert frequency.differences == pytest.approx([worst[a] - worst[b] for a, b in zip(own, base, strict=True)])
    chosen = _line(lines(found), "aol").choices
    assert chosen == _line(lines(by_accuracy), "aol").choices  # on validation accuracy
    assert found.verdicts[0].word == "gain"


def test_records_without_a_measure_say_so_and_have_that_of_the_last_epoch() -> None:
    plan = study()
    known = records(plan.all_runs(), _draw)  # by class only of the last epoch
    rows = _lines(plan, known, "worst_class_tail_mean")
    assert all(not line.seeds and line.problem and "worst_class_last" in line.problem for line in rows)
    assert all(len(line.seeds) == 3 and line.problem is None for line in _lines(plan, known, "worst_class_last"))


def test_a_baseline_with_a_grid_is_refused() -> None:
    plan = study()
    with pytest.raises(ValueError, match="made-up: the baseline aol must have one setting, not 3"):
        results(replace(plan, baseline="aol"), {})
    one = results(replace(plan.only(rho=[0.5]), baseline="aol"), _known(plan))
    assert [len(line.seeds) for line in lines(one)] == [3, 3, 3]


def test_the_paper_is_known_by_its_weights_and_not_by_a_name() -> None:
    plain, age, rival = study().methods
    plan = replace(study(), methods=(plain, replace(age, name="mine"), replace(rival, name="aol-like")))
    assert len(plan.extra_seeds) == 3  # as many as the grid of age has settings
    table = results(plan, _known(plan))
    assert [each.method for each in table.verdicts] == ["mine"]
    assert [(each.method, each.over) for each in table.rivals] == [("mine", "aol-like")]


def test_the_paper_beside_cells_without_three_seeds_is_that_of_the_cells_with_runs() -> None:
    plan = study(seeds=(1, 2), imbalances=(100, 50))
    known = {run: each for run, each in _known(plan).items() if run.imbalance == 100}
    ours = results(plan, known).verdicts[0].paper_gain
    alone = results(study(imbalances=(100,)), {}).verdicts[0].paper_gain
    assert ours == alone != results(plan, {}).verdicts[0].paper_gain


def test_an_unfinished_run_counts_as_missing(tmp_path: Path) -> None:
    plan = study()
    known = _known(plan)
    (cell,) = plan.cells_list()
    run = plan.run(cell, plan.method("frequency"), {}, 2)
    known[run] = replace(known[run], finished=False)
    table = study_results(plan, write(tmp_path, known.values()))
    assert (len(table.runs), table.damaged) == (len(known) - 1, [])
    assert _line(lines(table), "frequency").seeds == (1, 3)


@pytest.mark.parametrize("damage", ["another seed", "too short"])
def test_a_damaged_record_is_named_and_not_used(tmp_path: Path, damage: str) -> None:
    plan = study()
    store = write(tmp_path, _known(plan).values())
    (cell,) = plan.cells_list()
    run = plan.run(cell, plan.method("frequency"), {}, 2)
    if damage == "too short":
        made = store.read(run.run_id)
        assert made is not None
        store.write(replace(made, epochs=made.epochs[:-1], curves={"test_accuracy": np.full(19, 0.5)}))
    else:
        path = store.path(run.run_id) / "run.json"
        path.write_bytes(path.read_bytes().replace(b'"seed":2', b'"seed":3'))
    assert run.run_id not in finished_runs(store).index
    table = study_results(plan, store)
    ((name, why),) = table.damaged
    assert name == run.run_id
    assert damage == "another seed" or why == "it has 19 epochs instead of 20"
    assert _line(lines(table), "frequency").seeds == (1, 3)
