"""What is said under a table: numbers of runs that are true and grammatical, also of one."""

from __future__ import annotations

from dataclasses import replace

from aol.engine.settings import Settings
from aol.study.notes import hardware, missing, specifics
from aol.study.spec import load
from aol.study.table import make_table
from tests.support.made_up import record, records, study


def _same(_: Settings) -> tuple[float, float]:
    return 0.5, 0.5


def test_a_diverged_run_that_two_cells_share_is_one_run() -> None:
    plan = load("limited-access").only(imbalance=[100])
    known = records(plan.all_runs(), _same)
    plain = plan.run(plan.cells_list()[0], plan.method("none"), {}, 42)
    known[plain] = replace(known[plain], failed_at_epoch=3)
    assert "1 run diverged and counts as chance." in missing(make_table(plan, known))


def test_one_of_two_runs_is_there() -> None:
    plan = load("correlations")
    run = plan.all_runs()[1]
    table = make_table(plan, {run: record(run, 0.5)})
    assert missing(table) == ["1 of 2 runs is there.", "1 of 2 cells has no runs and is not shown."]
    assert hardware(table).startswith("1 run; made up; ")


def test_all_runs_or_the_one_run_are_there() -> None:
    plan = study(seeds=(1,)).only(method=["none"], rho=[0.1])
    (run,) = plan.all_runs()
    assert missing(make_table(plan, {run: record(run, 0.5)})) == ["The one run is there."]
    plan = study()
    assert missing(make_table(plan, records(plan.all_runs(), _same))) == ["All 18 runs are there."]


def test_a_table_with_sigmoid_says_what_weighted_losses_are_divided_by() -> None:
    plan = load("offline-reweighting").only(data=["cifar10"], imbalance=[100])
    known = records(plan.all_runs(), _same)
    said = specifics(make_table(plan, known), optimistic=False)
    assert (
        "Weighted losses of a batch are divided: softmax by the sum of their weights; sigmoid by the number of samples."
    ) in said
    softmax = {run: each for run, each in known.items() if run.loss == "softmax"}
    assert "Weighted losses" not in " ".join(specifics(make_table(plan, softmax), optimistic=False))
