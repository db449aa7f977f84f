"""`aol study show` and `aol study page` from the command line, on real runs and on wrong words."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from aol.cli import main
from aol.records.store import Store

STUDY = """
name = "tiny"
title = "A tiny study"
seeds = [1, 2, 3]
tries_seeds = 2

[common]
data = "digits"
epochs = 2
batch_size = 256
warmup = 0
validation = 0.1

[cells]
imbalance = [20]

[[methods]]
name = "none"
weighting = "none"

[[methods]]
name = "aol"
weighting = "aol"
grid = { rho = [0.1, 0.9] }

[[methods]]
name = "frequency"
weighting = "frequency"
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A study that was really run: its file, and the folder of its records."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "tiny.toml").write_text(STUDY)
    words = ["study", "run", str(folder / "tiny.toml"), "--out", str(folder / "out"), "--device", "cpu", "--json"]
    assert main(words) == 0
    return str(folder / "tiny.toml"), str(folder / "out")


def _show(ran: tuple[str, str], *more: str) -> int:
    return main(["study", "show", ran[0], "--out", ran[1], *more])


@pytest.mark.parametrize("figure", ["last", "worst_class", "macro_f1_last"])
def test_the_figures_shown_are_those_of_the_records(
    ran: tuple[str, str], capsys: pytest.CaptureFixture[str], figure: str
) -> None:
    assert _show(ran, "--json", "--figure", figure) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["figure"] == (f"{figure}_tail_mean" if figure == "worst_class" else figure)
    curve = "test_" + ("accuracy" if figure == "last" else figure.removesuffix("_last"))
    rows = {row["method"]: row for row in shown["gains"]}
    for name in ("none", "frequency"):
        own = [run for run in Store(ran[1]) if run.seed in (1, 2, 3) and run.settings["weighting"] == name]
        last = [run.curves[curve][-1] for run in own]  # 5 % of two epochs: one
        assert rows[name]["accuracy"] == pytest.approx(100 * sum(last) / 3)
    assert shown["verdicts"]
    assert _show(ran, "--figure", figure) == 0
    assert {"worst_class": "worst class", "macro_f1_last": "macro-F1"}.get(
        figure, "accuracy"
    ) in capsys.readouterr().out


@pytest.mark.parametrize(("ending", "start"), [("md", "A tiny"), ("csv", "study,"), ("json", "{")])
def test_the_ending_of_the_file_says_the_format(
    ran: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, start: str
) -> None:
    path = tmp_path / f"table.{ending}"
    assert _show(ran, "--write", str(path)) == 0
    assert capsys.readouterr().out == ""
    assert path.read_text(encoding="utf-8").startswith(start)


def test_a_part_of_a_study_is_shown_as_a_whole_of_its_own(
    ran: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _show(ran, "--only", "rho=0.9", "--only", "method=none,aol", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["method"], row["settings"]) for row in rows] == [("none", "1"), ("aol", "1")]


def test_the_page_of_a_study_that_was_run(ran: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    assert main(["study", "page", ran[0], "--out", ran[1], "--write", str(path)]) == 0
    assert '<details markdown="1" id="tiny">' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nothing"], "There is no study 'nothing'"),
        (["show", "period-10", "--out", "nowhere"], "There is no folder nowhere: aol study run ... --out nowhere"),
        (["show", "period-10", "--figure", "mean"], "figure must be one of last, tail_mean"),
        (["show", "arrival", "--figure", "second_half_mean"], "figure second_half_mean is for streams"),
        (["show", "period-10", "--format", "pdf"], "--format"),
        (["show", "period-10", "--format", "csv", "--json"], "--json and --format csv contradict each other."),
        (["show", "period-10", "--write", "t.xls"], "--write must end in .txt, .md, .csv, .json, or"),
        (["page", "--write", "no/such/page.md"], "--write: there is no folder no/such."),
        (["show", "period-10", "--seeds", "x"], "--seeds must be whole numbers"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert main(["study", *words]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"aol: {said}")
    assert found.err.count("\n") == 1


def test_no_records_are_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert main(["study", "show", "period-10"]) == 0
    assert "0/348 runs complete." in capsys.readouterr().out
    assert main(["study", "page"]) == 0
    assert "There are no complete runs of these studies yet." in capsys.readouterr().out
