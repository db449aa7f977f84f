"""Tables of a study, and their forms: text, Markdown, CSV, JSON and the notes below them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from aol.lab.settings import Settings
from aol.lab.study.results import StudyResults
from aol.lab.study.spec import load
from aol.lab.study.tables import FORMATS, NONE, markdown, notes, plain, render, tables
from tests.support.made_up import luck, record, records, results, study


def _drawn(gains: dict[str, float], *, noise: float = 0.003, seeds: int = 5, **more: object) -> StudyResults:
    plan = study(seeds=tuple(range(1, seeds + 1)), rhos=(0.1, 0.3, 0.5, 0.7, 0.9), **more)  # type: ignore[arg-type]

    def draw(run: Settings) -> tuple[float, float]:
        level = 0.7 + gains.get(run.weighting, 0.0)
        return level + noise * luck(run), level + noise * luck(run, salt=1)

    return results(plan, records(plan.all_runs(), draw))


def test_a_gain_from_picking_on_test_disappears_when_chosen_on_validation() -> None:
    table = _drawn({}, noise=0.02)
    row = table.gains[table.gains["method"] == "aol"].iloc[0]
    assert row["best_gain"] > 0.01
    assert row["best"] - row["best_of_k"] < row["best_gain"] / 2
    assert abs(row["gain"].mean) < row["best_gain"] / 2
    gains, *_ = tables(table).values()
    assert gains["best of k (none)"].tolist()[1] == f"{100 * row['best']:.2f} ({100 * row['best_of_k']:.2f})"


def test_methods_stand_side_by_side() -> None:
    table = _drawn({"aol": 0.02, "frequency": 0.05})
    frame = tables(table)["Methods, mean of cells"]
    assert frame["method"].tolist() == ["aol", "frequency"]
    (rival,) = json.loads(render(table, "json"))["rivals"]
    mean, low, high = (f"{rival[name]:+.2f}".replace("-", "−") for name in ("gain", "low", "high"))
    assert frame["aol minus it (95 %)"].tolist() == [NONE, f"{mean} ({low}, {high})"]
    assert rival["gain"] == pytest.approx(-3.0, abs=0.5)


def test_other_figures_of_the_study_are_columns_beside_its_verdict() -> None:
    (row,) = tables(_drawn({"aol": 0.05}))["Mean of cells"].to_dict("records")
    assert row["is there a gain?"] == "gain"
    assert all(row[name].endswith(") gain") for name in ("last", "best (optimistic)"))
    assert "tail_mean" not in row


def test_columns_without_any_text_are_left_out() -> None:
    table = _drawn({}, seeds=1)
    gains, *_ = tables(StudyResults(replace(table.study, paper=None), table.runs)).values()
    assert {"p", "paper"} & set(gains.columns) == set()


def test_one_baseline_run_is_not_called_the_best_of_many() -> None:
    plan = replace(study(seeds=(1,)), tries_seeds=0)
    table = results(plan, records(plan.all_runs(), lambda _: (0.5, 0.5)))
    gains, *_ = tables(table).values()
    assert gains["best of k (none)"].tolist()[1] == f"50.00 ({NONE})"
    assert {row["baseline_best_of_k"] for row in json.loads(render(table, "json"))["gains"]} == {None}


def test_notes_name_what_is_missing_chosen_and_corrected() -> None:
    text = " ".join(notes(_drawn({})))
    assert "40/40 runs complete" in text
    assert "corrected for 2 comparisons" in text
    assert "40 runs on made up" in text
    plan = load("limited-access").only(imbalance=[100])
    known = records(plan.all_runs(), lambda _: (0.5, 0.5))
    plain_run = plan.run(plan.cells_list()[0], plan.method("none"), {}, 42)
    known[plain_run] = replace(known[plain_run], failed_at_epoch=3)
    assert "1 run diverged" in notes(results(plan, known))[0]
    plan = load("correlations")
    first, second, *_ = notes(results(plan, {run: record(run, 0.5) for run in plan.all_runs()[1:]}))
    assert "1/2 runs complete" in first
    assert "1 of 2" in second


def test_numbers_are_the_same_in_every_form() -> None:
    table = _drawn({"aol": 0.02})
    told = json.loads(render(table, "json"))
    rows = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert len(rows) == len(told["gains"]) == 3
    for row, own in zip(rows, told["gains"], strict=True):
        for name in ("accuracy", "gain", "low", "high", "p", "p_corrected", "best_of_k", "paper"):
            assert (float(row[name]) if row[name] else None) == own[name], name
    aol = told["gains"][1]
    gain = table.gains["gain"][1]
    assert (aol["gain"], aol["low"]) == (round(100 * gain.mean, 8), round(100 * gain.interval[0], 8))
    assert (aol["p"], aol["seeds"], aol["settings"]) == (gain.p, "1; 2; 3; 4; 5", 5)
    for kind in FORMATS[:2]:
        assert f"{gain.mean * 100:+.2f}".replace("-", "−") in render(table, kind)


def test_a_cell_is_named_in_its_first_row_and_text_is_escaped() -> None:
    table = _drawn({}, imbalances=(100, 50))
    gains, *_ = tables(table).values()
    lines = markdown(gains).splitlines()
    assert lines[1].startswith("| --- | --- | ---: |")
    cells = [line.split(" | ")[0] for line in lines[2:8]]
    assert cells == ["| imbalance 100", "| ", "| ", "| imbalance 50", "| ", "| "]
    assert "<" not in markdown(gains).replace("&lt;", "")
    assert len({len(line) for line in plain(gains).splitlines()[:3]}) == 1


def test_json_has_no_numbers_that_are_not_numbers() -> None:
    text = render(results(study(), {}), "json")
    assert "NaN" not in text
    assert {row["gain"] for row in json.loads(text)["gains"]} == {None}
