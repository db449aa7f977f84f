"""The page of results: the same from the same records, up to date with results/, with reasons only when true."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.lab.settings import Settings
from aol.lab.study.page import results_page
from aol.lab.study.spec import Study, load
from aol.records.store import Store
from tests.support.made_up import fill, luck, record, records, study, write

ROOT = Path(__file__).parents[3]


def page(folder: Path, studies: list[Study] | None = None) -> str:
    return results_page(folder, studies and {study.name: study for study in studies})[0]


def rows_of(text: str, start: str) -> list[list[str]]:
    return [row.split("|")[1:-1] for row in text.splitlines() if row.startswith(f"| {start}")]


def told(text: str, start: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in rows_of(text, start)]


def test_the_page_begins_with_what_was_tested_of_the_papers_tables_and_two_statements(tmp_path: Path) -> None:
    plan = study(imbalances=(100, 50))
    fill(tmp_path, plan, {"aol": 0.03})
    text = page(tmp_path, [plan])
    ((tested, cells, paper, here, *rest),) = told(text, "[aol")
    own = "aol, rho chosen on validation: cifar10, reweight, softmax, imbalance 100/50"
    assert (tested, cells) == (f"[{own}](#made-up)", "2 of 64")
    assert text.index("| **long-tailed CIFAR, offline** |") < text.index(tested) < text.index("| **balanced CIFAR")
    assert paper == "+1.20"  # the paper's mean over both cells
    assert here.startswith("+3.")
    assert rest == ["3", "gain, as large as half the paper's"]
    assert told(text, "**balanced CIFAR")[0][1:] == ["0 of 28", "–", "–", "–", "no runs"]
    assert "long-tailed CIFAR, offline" not in page(tmp_path, [replace(plan, paper=None)])


def test_cells_that_gain_and_cells_that_lose_have_a_row_each_with_the_papers_setting(tmp_path: Path) -> None:
    plan = study(imbalances=(100, 50, 10), rhos=(0.5,))
    gains = {100: 0.05, 50: -0.05, 10: 0.0}

    def draw(run: Settings) -> tuple[float, float]:
        return 0.7 + gains[int(run.imbalance or 0)] * (run.weighting == "aol") + 0.001 * luck(run), 0.7

    write(tmp_path, records(plan.all_runs(), draw).values())
    rows = told(page(tmp_path, [plan]), "[aol")
    assert [row[-1].partition(",")[0] for row in rows] == ["gain", "loss", "no gain shown"]
    assert rows[0][0] == "[aol ρ=0.5 class: cifar10, reweight, softmax, imbalance 100](#made-up)"
    assert rows[0][1:3] == ["1 of 64", "+1.54 (ρ=0.8 sample)"]


def test_a_stream_is_told_at_its_last_step_too(tmp_path: Path) -> None:
    plan = load(ROOT / "results" / "studies" / "fixed-rho-limited-access.toml").only(imbalance=[100])
    for run in plan.all_runs():
        made = record(run, 0.5 + 0.001 * run.seed)
        made.curves["test_accuracy"][-1] += (0.07 + 0.001 * run.seed) * (run.weighting == "aol")
        Store(tmp_path).write(made)
    ((*_, here, _, _),) = told(page(tmp_path, [plan]), "[aol")
    assert "<br>last step +7.55 (+7.33 to +7.77)" in here


def test_a_study_whose_threshold_was_mostly_zero_hardly_tests_age(tmp_path: Path) -> None:
    plan = load(ROOT / "results" / "studies" / "fixed-rho-limited-access.toml").only(imbalance=[100])
    store = Store(tmp_path)
    for run in plan.all_runs():
        made = record(run, 0.3 + 0.001 * (run.weighting == "aol") * run.seed)
        zeros = np.where(np.arange(200) < 130, 0.0, 0.5)
        store.write(replace(made, curves={**made.curves, "threshold": zeros}))
    assert "accuracy 0: in 65 % (imbalance 100) of the steps" in " ".join(page(tmp_path, [plan]).split())


def test_what_the_best_on_test_gains_is_noted_beside_that_of_the_baseline(tmp_path: Path) -> None:
    one = study(seeds=(1,))
    runs = records(one.all_runs(), lambda run: (0.7 + 0.05 * (run.weighting == "aol") + 0.001 * run.seed, 0.7))
    write(tmp_path, runs.values())
    text = " ".join(page(tmp_path, [one]).split())
    assert told(page(tmp_path, [one]), "[aol")[0][-1] == "under 3 seeds"
    # Baseline runs have 70.1 to 70.4: the best of four is 0.15 above their mean.
    assert "(optimistic): +5.00; best of equally many baseline runs: +0.15 above their mean." in text


def test_a_section_has_tables_notes_and_commands(tmp_path: Path) -> None:
    plan = study()
    fill(tmp_path, plan, {"aol": 0.03, "frequency": 0.05})
    text = results_page(tmp_path, {"my studies/own.toml": plan})[0]
    assert 'id="made-up"' in text
    assert "| frequency | +" in text
    assert "18 runs on made up; aol 1.0; torch 2.0; python 3.11; 0.18 hours of training." in text
    assert f"aol study run 'my studies/own.toml' --out {tmp_path.as_posix()}" in text
    assert "](statistics.md)" not in text


def test_a_study_of_many_cells_has_a_row_for_each_cell_with_gains_alone(tmp_path: Path) -> None:
    plan = replace(study(imbalances=tuple(range(10, 140, 10)), rhos=(0.5,)), paper=None)
    fill(tmp_path, plan, {"aol": 0.03})
    rows = told(page(tmp_path, [plan]), "imbalance ")
    assert len(rows) == 13
    for _, base, own, _ in rows:
        assert 69 < float(base) < 72
        assert 2.5 < float(own) < 3.5


def test_names_are_escaped(tmp_path: Path) -> None:
    plan = replace(study(), name="My study|2", paper=None)
    plan = replace(plan, methods=(plan.methods[0], *(replace(m, name=f"{m.name}|x") for m in plan.methods[1:])))
    fill(tmp_path, plan, {"aol": 0.05})
    text = page(tmp_path, [plan])
    assert "Age of Learning" not in text
    assert 'id="my-study2"' in text
    assert "| aol\\|x" in text


def test_studies_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Two studies are called 'made-up'"):
        results_page(tmp_path, {"a": study(), "b": study(seeds=(4, 5))})


def test_a_study_whose_runs_are_all_in_another_has_no_section_of_its_own(tmp_path: Path) -> None:
    large, small = study(imbalances=(100, 50)), replace(study(imbalances=(100,)), name="smaller")
    fill(tmp_path, large, {})
    text = page(tmp_path, [small, large])
    assert 'id="made-up"' in text
    assert "smaller" not in text


def test_ages_that_are_kept_come_with_the_command_that_draws_them(tmp_path: Path) -> None:
    plan = load("correlations")
    store = Store(tmp_path)
    for run in plan.all_runs():
        values = np.tile([3.0, 1.0, 2.0, 5.0, 4.0], 20)
        store.write(replace(record(run, 0.5), by_class={"mean_age": values, "test_accuracy": 1 / values}))
    text = page(tmp_path, [plan])
    assert f"aol study draw correlations --out {tmp_path.as_posix()} --write correlations.png`\n" in text


def test_the_page_says_that_settings_came_before_runs_only_where_git_shows_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        own = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run([*own, *words], capture_output=True, text=True, check=True).stdout.strip()

    text, file = (ROOT / "src/aol/lab/study/builtin/correlations.toml").read_text(), tmp_path / "own.toml"
    file.write_text(text)
    git("init", "-q")
    git("add", "own.toml")
    git("commit", "-qm", "Plan a study")
    plan, commit = load(file), git("rev-parse", "HEAD")

    def says(**versions: str) -> bool:
        age = np.arange(1.0, 101.0)
        for run in plan.all_runs():
            by_class = {"mean_age": age, "test_accuracy": 1 / age}
            Store(tmp_path).write(replace(record(run, 0.5), by_class=by_class, versions=versions))
        return "committed before the runs" in results_page(tmp_path, {str(file): plan})[0]

    assert says(commit=commit)
    assert not says()
    assert not says(commit="0" * 40)
    file.write_text(text + "# changed since\n")
    assert not says(commit=commit)


def test_charts_are_written_beside_the_page_and_are_the_same_each_time(tmp_path: Path) -> None:
    plan = study()
    fill(tmp_path, plan, {"aol": 0.02})
    text, charts = results_page(tmp_path, {"made-up": plan}, charts=True)
    assert (text, charts) == results_page(tmp_path, {"made-up": plan}, charts=True)
    assert charts["results-made-up.svg"].startswith(b"<?xml")
    assert "](results-made-up.svg)" in text
    assert ".svg" not in page(tmp_path, [plan])


@pytest.mark.parametrize(("folder", "page"), [("results", "results.md"), ("results/margins", "results-margins.md")])
def test_the_pages_in_the_docs_are_up_to_date_with_the_runs(
    monkeypatch: pytest.MonkeyPatch, folder: str, page: str
) -> None:
    monkeypatch.chdir(ROOT)
    text, charts = results_page(Path(folder), charts=True)
    docs = ROOT / "docs"
    assert text == (docs / page).read_text(encoding="utf-8"), "run: make results"
    drawn_by = re.compile(rb"Matplotlib v[0-9.]+")
    for name, content in charts.items():
        there = (docs / name).read_bytes()
        if drawn_by.findall(there) == drawn_by.findall(content):  # other versions place text a little differently
            assert there == content, name
