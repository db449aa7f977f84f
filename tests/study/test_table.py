"""A table as a whole: its family of tests, its groups, its seeds, and records that must not be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aol.engine.intervals import holm
from aol.engine.settings import Settings
from aol.study.records import Record, Store
from aol.study.spec import Study
from aol.study.table import axis, group_of, make_table, recorded_table, with_recorded_seeds
from tests.support.made_up import luck, record, records, study


def _draw(run: Settings) -> tuple[float, float]:
    return 0.7 + 0.01 * luck(run), 0.7 + 0.01 * luck(run, salt=1)


def _known(plan: Study) -> dict[Settings, Record]:
    return records(plan.all_runs(), _draw)


def test_p_values_are_corrected_over_all_lines_that_have_a_test() -> None:
    plan = study(imbalances=(100, 50))
    table = make_table(plan, _known(plan))
    gains = [line.gain for line in table.lines if line.gain is not None]
    assert [p for p in table.p_values if p is not None] == pytest.approx(holm([gain.p for gain in gains]))
    assert table.tests == 4  # two cells, two methods besides the baseline


def test_a_single_seed_makes_no_test() -> None:
    plan = study(seeds=(1,))
    assert make_table(plan, _known(plan)).tests == 0


def test_groups_are_cells_that_differ_in_the_longest_axis_of_numbers() -> None:
    plan = replace(study(), cells={"loss": ("softmax", "sigmoid"), "imbalance": (100, 50, 10)})
    assert axis(plan) == "imbalance"
    assert group_of(plan, {"loss": "sigmoid", "imbalance": 50}) == (("loss", "sigmoid"),)
    table = make_table(plan, _known(plan))
    assert [group for group, _ in table.groups] == [(("loss", "softmax"),), (("loss", "sigmoid"),)]
    assert [verdict.claim.cells_planned for _, verdict in table.groups] == [3, 3]
    assert make_table(study(), _known(study())).groups == []


def test_a_study_without_cells_has_one() -> None:
    plan = replace(study(), cells={})
    table = make_table(plan, _known(plan))
    assert len(table.lines) == 3
    assert axis(plan) is None


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ("second_half_mean", "figure second_half_mean is for streams"),
        ("averaged_last", "needs an averaged network"),
        ("accuracy", "figure must be one of last, tail_mean"),
    ],
)
def test_a_figure_that_the_study_has_not_is_refused(figure: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_table(study(), {}, figure=figure)


def test_a_baseline_with_a_grid_is_refused() -> None:
    plan = study()
    with pytest.raises(ValueError, match="made-up: the baseline aol must have one setting, not 3"):
        make_table(replace(plan, baseline="aol"), {})
    one = make_table(replace(plan.only(rho=[0.5]), baseline="aol"), _known(plan))
    assert [len(line.seeds) for line in one.lines] == [3, 3, 3]


def test_seeds_that_were_run_beyond_the_plan_count(tmp_path: Path) -> None:
    plan = study(seeds=(1, 2))
    store = Store(tmp_path)
    for each in _known(replace(plan, seeds=(1, 2, 77, 9))).values():
        store.put(each)
    table = recorded_table(plan, store)
    assert table.study.seeds == (1, 2, 9, 77)
    assert all(len(line.seeds) == 4 for line in table.lines)
    assert recorded_table(plan, store, more_seeds=False).study.seeds == (1, 2)


def test_the_baselines_further_seeds_are_no_seeds_of_the_study() -> None:
    plan = study(seeds=(1, 2))
    assert with_recorded_seeds(plan, _known(plan)).seeds == (1, 2)


def test_runs_of_another_study_are_not_counted() -> None:
    plan, other = study(), replace(study(), common={**study().common, "epochs": 21}, seeds=(50, 51))
    assert with_recorded_seeds(plan, _known(other)).seeds == plan.seeds


def test_a_damaged_record_is_named_and_not_used(tmp_path: Path) -> None:
    plan, store = study(), Store(tmp_path)
    for each in _known(plan).values():
        store.put(each)
    (cell,) = plan.cells_list()
    path = store.path(plan.run(cell, plan.method("frequency"), {}, 2).run_id)
    path.write_bytes(path.read_bytes().replace(b"0.7", b"0.9", 1))
    table = recorded_table(plan, store)
    assert [name for name, _ in table.damaged] == [path.name]
    assert [line.seeds for line in table.lines if line.method == "frequency"] == [(1, 3)]


def test_the_same_records_make_the_same_table_in_any_order() -> None:
    plan = study(imbalances=(100, 50))
    known = _known(plan)
    turned = dict(reversed(list(known.items())))
    assert make_table(plan, known).lines == make_table(plan, turned).lines


def test_a_curve_shorter_than_the_run_is_no_crash() -> None:
    plan = study()
    known = {run: replace(record(run, 0.5, 0.5), curves={"test_accuracy": []}) for run in plan.all_runs()}
    assert all(line.gain is None for line in make_table(plan, known).lines)


def test_the_paper_is_known_by_its_weights_and_not_by_a_name() -> None:
    plain, age, rival = study().methods
    plan = replace(study(), methods=(plain, replace(age, name="mine"), replace(rival, name="aol-like")))
    assert len(plan.extra_seeds) == 3  # as many as the grid of age has settings
    table = make_table(plan, _known(plan))
    assert [each.claim.method for each in table.verdicts] == ["mine"]
    assert [(each.claim.method, each.claim.over) for each in table.rivals] == [("mine", "aol-like")]


def test_age_with_one_setting_costs_no_further_runs_of_the_baseline() -> None:
    assert study(rhos=(0.5,)).extra_seeds == ()


def test_the_paper_beside_cells_without_three_seeds_is_that_of_the_cells_with_runs() -> None:
    plan = study(seeds=(1, 2), imbalances=(100, 50))
    known = {run: each for run, each in _known(plan).items() if run.imbalance == 100}
    ours = make_table(plan, known).verdicts[0].claim.paper_gain
    alone = make_table(study(imbalances=(100,)), {}).verdicts[0].claim.paper_gain
    assert ours == alone != make_table(plan, {}).verdicts[0].claim.paper_gain
