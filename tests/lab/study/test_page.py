"""The page of results: the same from the same records, up to date with results/, with reasons only when true."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.lab.study.comparisons import finished_runs, study_results
from aol.lab.study.page import results_page
from aol.lab.study.spec import Method, Study, load
from aol.lab.study.tables import gain_text
from aol.records.store import Store
from tests.support.made_up import fill, record, records, study, write

ROOT = Path(__file__).parents[3]
_CLASSES = {"cifar10": 10, "cifar100": 100}


def page(folder: Path, studies: list[Study] | None = None, **more: object) -> str:
    return results_page(folder, studies, **more).text  # type: ignore[arg-type]


def test_written_twice_the_page_is_the_same(tmp_path: Path) -> None:
    plan = study(imbalances=(100, 50))
    fill(tmp_path, plan, {"aol": 0.02})
    assert page(tmp_path, [plan]) == page(tmp_path, [plan])


def test_the_page_has_verdict_tables_hardware_and_the_command(tmp_path: Path) -> None:
    plan = study()
    fill(tmp_path, plan, {"aol": 0.03, "frequency": 0.05})
    text = page(tmp_path, [plan])
    assert "| [made-up](#made-up) | holds | " in text
    assert "**aol against none: holds. " in text
    assert "| frequency | +" in text
    assert "18 runs; made up; aol 1.0; torch 2.0; python 3.11; 0.18 hours of training." in text
    assert f"aol study run made-up --out {tmp_path.as_posix()}" in text
    assert "18/18 runs complete." in text


def test_the_page_begins_with_the_papers_claims_and_what_is_left_of_them(tmp_path: Path) -> None:
    plan = study(imbalances=(100, 50))
    fill(tmp_path, plan, {"aol": 0.03})
    text = page(tmp_path, [plan])
    line = next(line for line in text.splitlines() if line.startswith("| long-tailed CIFAR, offline |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == "+1.20"  # the paper's mean over both cells
    assert cells[2].startswith("+3.")
    assert cells[3:] == ["3 seeds, 2 cells", "holds", "[made-up](#made-up)"]
    assert text.index(line) < text.index("## All studies")
    assert "| arrival |" not in text
    assert "| balanced CIFAR, a part arrives each epoch | – | – | – | no runs | – |" in text
    assert "All studies" not in page(tmp_path, [replace(plan, paper=None)])


def test_a_study_whose_threshold_was_mostly_zero_hardly_tests_age(tmp_path: Path) -> None:
    plan = load("fixed-rho-limited-access").only(imbalance=[100])
    store = Store(tmp_path)
    for run in plan.all_runs():
        made = record(run, 0.3 + 0.001 * (run.weighting == "aol") * run.seed)
        zeros = np.where(np.arange(200) < 130, 0.0, 0.5)
        store.write(replace(made, curves={**made.curves, "threshold": zeros}))
    made_page = results_page(tmp_path, [plan])
    assert "](statistics.md)" in made_page.text
    assert "In 65 % (imbalance 100) of the steps" in " ".join(made_page.text.split())


def test_without_records_the_page_says_so(tmp_path: Path) -> None:
    assert "There are no complete runs of these studies yet." in page(tmp_path)


def test_a_study_without_a_whole_seed_is_listed_and_has_no_table(tmp_path: Path) -> None:
    plan = study()
    fill(tmp_path, plan.only(method=["none"]), {})
    text = page(tmp_path, [plan])
    assert "| made-up | not enough runs: no seed is complete |" in text
    assert 'id="made-up"' not in text


def test_a_study_whose_runs_are_all_in_another_has_no_section_of_its_own(tmp_path: Path) -> None:
    large = study(imbalances=(100, 50))
    small = replace(study(imbalances=(100,)), name="smaller")
    fill(tmp_path, large, {})
    text = page(tmp_path, [small, large])
    assert "| smaller, part of [made-up](#made-up) |" in text
    assert "](statistics.md)" not in text  # a page of the docs, beside which a user's own page does not lie
    assert 'id="smaller"' not in text


def test_a_study_that_only_shares_its_baseline_is_not_listed(tmp_path: Path) -> None:
    whole = study()
    other = replace(whole, name="other", methods=(whole.methods[0], Method("aol", {"weighting": "aol", "rho": 0.25})))
    fill(tmp_path, whole, {})
    assert "\n| other" not in page(tmp_path, [other, whole])


def test_a_study_without_a_method_of_the_paper_has_verdicts_on_all_of_its_methods(tmp_path: Path) -> None:
    plan = study(seeds=(1, 2, 3, 4, 5)).only(method=["none", "frequency"])
    fill(tmp_path, plan, {"frequency": 0.05})
    text = page(tmp_path, [plan])
    assert "| [made-up](#made-up) | holds | frequency +" in text
    assert "**frequency against none: holds. " in text


def test_the_command_names_the_cells_and_seeds_that_were_run(tmp_path: Path) -> None:
    plan = load("period-10")
    part = replace(plan.only(imbalance=[200], method=["none", "aol"]), seeds=(42, 7))
    fill(tmp_path, part, {})
    text = page(tmp_path, [plan])
    assert "aol study run period-10 --only imbalance=200 --seeds 42,7 --out" in text
    assert "4 of 5 cells" in text


def test_the_page_of_a_study_of_ones_own_names_its_file_and_every_method(tmp_path: Path) -> None:
    plan = replace(study(seeds=(1, 2, 3, 4, 5)), name="a|b", paper=None)
    plan = replace(
        plan, methods=(plan.methods[0], *(replace(each, name=f"{each.name}|x") for each in plan.methods[1:]))
    )
    fill(tmp_path, plan, {"aol": 0.05})
    text = page(tmp_path, [plan], called={"a|b": "my studies/own.toml"})
    assert "Age of Learning" not in text
    assert "| [a\\|b](#ab) | holds | aol\\|x +" in text
    assert "aol study run 'my studies/own.toml' --out" in text
    assert "hours on a GPU" not in text


def test_links_and_commands_of_a_study_of_ones_own_work(tmp_path: Path) -> None:
    plan = replace(study(), name="My study", cells={"augment": (True, False)}, paper=None)
    fill(tmp_path, replace(plan.only(augment=[True]), seeds=(1, 2, 3, 9)), {})
    text = results_page(tmp_path, [plan], charts=True).text
    assert "| [My study](#my-study) |" in text
    assert "](results-My%20study.svg)" in text
    assert "aol study run 'My study' --only augment=true --seeds 1,2,3,9 --out" in text


def test_studies_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Two studies are called 'made-up'"):
        results_page(tmp_path, [study(), study(seeds=(4, 5))])


def test_a_study_with_damaged_runs_only_is_no_part_of_another(tmp_path: Path) -> None:
    plan = study()
    other = replace(plan, name="other", common={**plan.common, "epochs": 21})
    fill(tmp_path, plan, {})
    run = other.all_runs()[0]
    (write(tmp_path, [record(run, 0.5, 0.5)]).path(run.run_id) / "run.json").write_text("{")
    (row,) = [line for line in page(tmp_path, [plan, other]).splitlines() if line.startswith("| other")]
    assert "part of" not in row
    assert row.endswith("| 0 of 18, 1 damaged |")


def test_runs_that_stand_in_two_sections_are_said_to_be_the_same(tmp_path: Path) -> None:
    plan = study()
    fill(tmp_path, plan, {})
    text = page(tmp_path, [plan, replace(plan, name="again")])
    assert text.count("The runs are those of [made-up](#made-up).") == 1


def test_the_same_runs_have_one_section_under_the_study_that_planned_their_seeds(tmp_path: Path) -> None:
    fill(tmp_path, load("period-10-seeds").only(data=["cifar10"], imbalance=[200], method=["none", "aol"]), {})
    text = page(tmp_path, [load("period-10"), load("period-10-seeds")])
    assert "| period-10, part of [period-10-seeds](#period-10-seeds) |" in text
    assert 'id="period-10"' not in text
    assert 'id="period-10-seeds"' in text


def test_the_summary_says_of_how_many_cells_and_seeds_and_what_the_best_on_test_gains(tmp_path: Path) -> None:
    whole = study(imbalances=(100, 50))
    fill(tmp_path / "part", whole.only(imbalance=[100]), {"aol": 0.05})
    row = next(line for line in page(tmp_path / "part", [whole]).splitlines() if line.startswith("| [made-up]"))
    assert row.split(" | ")[1] == "holds (1 of 2 cells judged)"
    one = study(seeds=(1,))
    runs = records(one.all_runs(), lambda run: (0.7 + 0.05 * (run.weighting == "aol") + 0.001 * run.seed, 0.7))
    write(tmp_path / "one", runs.values())
    row = next(line for line in page(tmp_path / "one", [one]).splitlines() if line.startswith("| [made-up]"))
    # Baseline runs have 70.1 to 70.4: the best of four is 0.15 above their mean, and 0.3 above the first, the worst.
    assert row == "| [made-up](#made-up) | not enough runs | aol +5.00, 1 seed | +1.54 | +5.00 (+0.15) | 8 of 8 |"


def test_ages_that_are_kept_come_with_the_command_that_draws_them(tmp_path: Path) -> None:
    plan = load("heatmaps")
    store = Store(tmp_path)
    for run in plan.all_runs():
        made = record(run, 0.5)
        rows: dict[str, list[float]] = {
            "mean_age": [3.0, 1.0, 2.0, 5.0, 4.0],
            "test_accuracy": [0.3, 0.5, 0.4, 0.2, 0.1],
            "train_count": [50.0, 40.0, 30.0, 20.0, 10.0],
        }
        by_class = {name: np.array((values * 20)[: _CLASSES[run.data]]) for name, values in rows.items()}
        store.write(replace(made, by_class=by_class))
    text = page(tmp_path, [plan])
    assert f"aol study draw heatmaps --out {tmp_path.as_posix()} --write heatmaps.png\n```" in text
    assert "--optimistic\n" not in text
    assert "log size, cubic" in text


def test_a_grid_without_a_validation_part_is_why_there_is_no_figure(tmp_path: Path) -> None:
    plan = study()
    write(tmp_path, [record(run, 0.7) for run in plan.all_runs()])
    text = page(tmp_path, [plan.only(method=["aol"])])
    assert "| made-up | not enough runs: no validation accuracy to choose a setting by" in text


def test_a_page_of_built_in_studies_says_what_their_methods_are(tmp_path: Path) -> None:
    fill(tmp_path, load("period-10-seeds").only(data=["cifar10"], imbalance=[200], method=["none", "aol"]), {})
    text = page(tmp_path, [load("period-10-seeds")])
    assert "- methods: none: no weighting; aol: weights from ages" in text
    assert "A cell is one combination" in text
    own = replace(study(), paper=None)
    fill(tmp_path / "own", own, {})
    text = page(tmp_path / "own", [own])
    assert "- methods:" not in text  # other studies may call other things so
    assert "- best on test:" not in text


def test_cells_that_no_one_command_names_are_repeated_by_several(tmp_path: Path) -> None:
    plan = load("arrival").only(data=["cifar10"])
    fill(tmp_path, plan.only(loss=["softmax"], fraction=[0.01, 0.05]), {"aol": 0.01})
    fill(tmp_path, plan.only(loss=["sigmoid"], fraction=[0.5]), {"aol": 0.01})
    run = [line for line in page(tmp_path, [load("arrival")]).splitlines() if line.startswith("aol study run")]
    words, out = "aol study run arrival --only data=cifar10", f"--out {tmp_path.as_posix()}"
    assert run == [
        f"{words} --only loss=softmax --only fraction=0.01,0.05 {out}",
        f"{words} --only loss=sigmoid --only fraction=0.5 {out}",
    ]


def test_groups_without_a_gain_are_not_listed(tmp_path: Path) -> None:
    plan = load("arrival").only(data=["cifar10"], fraction=[0.01, 0.05])
    fill(tmp_path, plan, {"aol": 0.01})
    text = page(tmp_path, [load("arrival")])
    assert text.count("not enough runs. None of") == 1


def test_the_best_epoch_of_the_best_setting_stands_beside_the_paper(tmp_path: Path) -> None:
    """Only the best epoch of one setting is high: by no other figure would it be seen."""
    plan = study(rhos=(0.1, 0.5))
    store = Store(tmp_path)
    for run in plan.all_runs():
        level = {"none": 0.70, "aol": 0.69, "frequency": 0.71}[run.weighting]
        curve = np.full(run.epochs, level)
        curve[3] = level + (0.06 if run.rho == 0.5 and run.weighting == "aol" else 0.01)
        whole = record(run, level, level)
        store.write(replace(whole, curves={**whole.curves, "test_accuracy": curve}))
    text = page(tmp_path, [plan])
    assert "|  | aol: 3 tries | 75.00 | +4.00 | 73.74 | +1.54 | 71.00 |" in text
    assert "| imbalance 100 | none | 71.00 | – | 72.20 | – | – |" in text
    assert "| best epoch of the best setting on test | 75.00 +4.00 |" in text
    assert "| the same in the paper | 73.74 +1.54 |" in text
    assert "| best epoch, best of 3 runs of none | 71.00 |" in text
    assert "As published" not in page(tmp_path, [replace(plan, paper=None)])


def test_charts_are_written_beside_the_page_and_are_the_same_each_time(tmp_path: Path) -> None:
    plan = study()
    fill(tmp_path, plan, {"aol": 0.02})
    first, second = (results_page(tmp_path, [plan], charts=True) for _ in range(2))
    assert first.charts == second.charts
    assert first.charts["results-made-up.svg"].startswith(b"<?xml")
    assert "](results-made-up.svg)" in first.text
    assert ".svg" not in page(tmp_path, [plan])


def test_the_page_in_the_docs_is_up_to_date_with_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = results_page(Path("results"), charts=True)
    docs = ROOT / "docs"
    assert made.text == (docs / "results.md").read_text(encoding="utf-8"), "run: aol study page --write docs/results.md"
    drawn_by = re.compile(rb"Matplotlib v[0-9.]+")
    for name, content in made.charts.items():
        there = (docs / name).read_bytes()
        if drawn_by.findall(there) == drawn_by.findall(content):  # other versions place text a little differently
            assert there == content, name


def test_the_page_of_margins_and_the_readme_say_what_the_runs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = (
        "margins-fresh", "margins", "margins-balanced", "margins-fashion", "margins-fashion-balanced", "margins-digits",
        "margins-short", "margins-short-cifar", "margins-short-cifar-balanced", "margins-stream",
        "margins-stream-fashion", "margins-stream-cifar", "hidden-minorities",
    )  # fmt: skip
    folder = Path("results/margins")
    made = results_page(folder, [load(name) for name in names], charts=True)
    command = f"aol study page {' '.join(names)} --out results/margins --write docs/results-margins.md"
    assert made.text == (ROOT / "docs" / "results-margins.md").read_text(encoding="utf-8"), f"run: {command}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {
        "margins-fresh": {
            "logit-adjustment-1.5": "adjustment, τ = 1.5 |", "logit-adjustment": "adjustment, τ = 1 |",
            "margin-probability-1.5": "`Margins(tau=1.5)`** |", "margin-probability": "`Margins()`** |",
        },
        "margins": {"cb-deferred": "last fifth of the epochs |", "aol": "(the paper) |"},
    }  # fmt: skip
    store = Store(folder)
    finished = finished_runs(store)
    for name, methods in rows.items():
        found = [each for each in study_results(load(name), store, finished).comparisons if each.gain]
        assert {each.method for each in found} >= set(methods)
        for each in (each for each in found if each.method in methods):
            assert each.gain is not None
            (line,) = [line for line in readme.splitlines() if methods[each.method] in line]
            assert gain_text(each.gain) in line
    text = " ".join(readme.split())
    for name in ("margins-balanced", "margins-fashion-balanced", "margins-digits", "margins-stream"):
        for each in study_results(load(name), store, finished).of("margin-probability"):
            assert each.gain is not None
            assert gain_text(each.gain) in text
