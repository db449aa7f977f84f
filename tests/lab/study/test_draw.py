"""Figures of studies: every number drawn is recomputed from the records, run by run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.cli import main
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.study.draw import Estimate, draw, draw_forest, gain_figure
from aol.lab.study.results import StudyResults
from aol.lab.study.spec import Method, Study, load
from aol.records.record import Run
from aol.records.store import Store
from aol.report.figures import style
from tests.support.made_up import luck, record, records, results, study

SIZES = [9, 300, 20]


def _lone(**changes: object) -> Study:
    common = {"data": "cifar10", "epochs": 6, **changes}
    return Study("aged", "Ages", common, {"imbalance": (50, 10)}, (1, 2, 3), (Method("none"),), tries_seeds=0)  # type: ignore[arg-type]


def _aged(run: Settings, **changes: object) -> Run:
    ages = np.random.default_rng([run.seed, int(run.imbalance or 0)]).uniform(1, 9, (run.epochs, 3)).astype(np.float32)
    known = {"over_time": {"age": ages}, "by_class": {"test_accuracy": np.full(3, 0.5)}}
    return replace(record(run, 0.5), classes=["a", "b", "c"], counts=SIZES, **known | changes)  # type: ignore[arg-type]


def _table(of: Study, **changed: Run) -> StudyResults:
    return results(of, {run: changed.get(f"seed_{run.seed}_{run.imbalance:g}", _aged(run)) for run in of.all_runs()})


def test_ages_are_means_over_seeds_with_the_head_on_top() -> None:
    table = _table(_lone())
    first, second, bar = draw(table).axes
    for axes, imbalance in ((first, 50), (second, 10)):
        own = [run.over_time["age"] for run in table.runs.runs.values() if run.settings["imbalance"] == imbalance]
        wanted = np.mean(own, axis=0)[:, [1, 2, 0]].T
        assert np.asarray(axes.images[0].get_array()) == pytest.approx(wanted, rel=1e-6)
        assert axes.get_title(loc="left") == f"imbalance {imbalance}, mean over 3 seeds"
    assert bar.get_ylabel() == "class age (epochs)"


@pytest.mark.parametrize(("epochs", "end"), [(6, 7.0), (99, 100.0), (200, 100.0)])
def test_colours_end_at_a_hundred_or_at_the_oldest_that_a_class_can_be(epochs: int, end: float) -> None:
    (first, *_) = draw(_table(_lone(epochs=epochs))).axes
    assert first.images[0].norm.vmax == end


def test_runs_that_diverged_or_kept_no_ages_are_left_out() -> None:
    of = _lone()
    runs = {(run.seed, run.imbalance): run for run in of.all_runs()}
    diverged = _aged(runs[1, 50], failed_at_epoch=2, over_time={})
    first, second, _ = draw(_table(of, seed_1_50=diverged, seed_2_10=_aged(runs[2, 10], over_time={}))).axes
    assert [axes.get_title(loc="left")[-7:] for axes in (first, second)] == ["2 seeds"] * 2
    with pytest.raises(WrongSettingsError, match="No complete run of aged has the ages"):
        draw(results(of, {run: _aged(run, failed_at_epoch=1, over_time={}) for run in of.all_runs()}))


def test_a_long_title_stands_whole_above_its_panel() -> None:
    of = replace(_lone(), cells={"imbalance": (50,), "batch_size": (128,), "warmup": (0,)})
    figure = draw(_table(of))
    figure.draw_without_rendering()  # lays it out
    title = figure.axes[0]._left_title  # type: ignore[attr-defined]
    assert title.get_text().replace("\n", " ") == "imbalance 50, batch size 128, warmup 0, mean over 3 seeds"
    assert title.get_window_extent().x1 < figure.bbox.x1


def test_gains_are_those_of_the_table_with_the_papers() -> None:
    plan = study()
    table = results(plan, records(plan.all_runs(), lambda run: (0.7 + 0.02 * luck(run), 0.7)))
    (axes,) = gain_figure(table).axes
    points = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "s" and len(line.get_xdata())]
    assert points == pytest.approx([100 * gain.mean for gain in table.gains["gain"].dropna()])
    circles = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert circles == pytest.approx([1.54])


# Forest plots

BLOCKS = [
    ("first", [Estimate("a", 1.0, (0.5, 1.5), 2.0), Estimate("b", -1.0, None)]),
    ("second", [Estimate("c", 3.0, (2.0, 4.0))]),
]


def test_every_estimate_is_drawn_at_its_value() -> None:
    (axes,) = draw_forest(BLOCKS, "gain", "paper").axes
    drawn = [line.get_xdata().tolist() for line in axes.lines if hasattr(line.get_xdata(), "tolist")]
    for value in ([1.0], [-1.0], [3.0], [2.0], [0.5, 1.5], [2.0, 4.0]):
        assert value in drawn
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in axes.texts] == ["first", "second"]
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["estimate, 95 % interval", "paper"]


def test_many_rows_are_drawn_in_two_columns_of_one_scale() -> None:
    blocks = [
        (f"block {i}", [Estimate(f"row {i}.{j}", float(i), (i - 1.0, i + 1.0)) for j in range(5)]) for i in range(5)
    ]
    left, right = draw_forest(blocks, "gain", "paper").axes
    assert [text.get_text() for text in left.texts] == ["block 0", "block 1", "block 2"]
    assert [text.get_text() for text in right.texts] == ["block 3", "block 4"]
    assert [text.get_text() for text in right.get_yticklabels()] == [f"row {i}.{j}" for i in (3, 4) for j in range(5)]
    assert left.get_xlim() == right.get_xlim()
    assert left.get_ylim() == right.get_ylim()
    assert len(draw_forest(blocks[:4], "gain", "paper").axes) == 1
    long = [(39 * "w" + name, rows) for name, rows in blocks]
    names = [text.get_text() for axes in draw_forest(long, "gain", "paper").axes for text in axes.texts]
    assert max(map(len, names)) <= 44  # or they reach into the column beside
    alone = [("one", [Estimate(str(j), 1.0, None) for j in range(30)])]
    assert len(draw_forest(alone, "gain", "paper").axes) == 1


def test_an_svg_with_text_is_small_the_same_each_time_and_names_common_fonts() -> None:
    first, second = (style.rendered(draw_forest(BLOCKS, "gain", "paper"), "svg", text=True) for _ in range(2))
    assert first == second
    assert b">first</text>" in first
    assert b"sans-serif" in first
    assert len(first) < 15_000


# The command

STUDY = "correlations-smoke"


def _draw(folder: Path, write: str = "ages.png") -> int:
    return main(["study", "draw", STUDY, "--out", str(folder / "results"), "--write", str(folder / write)])


def _store(folder: Path) -> None:
    for run in load(STUDY).all_runs():
        Store(folder / "results").write(_aged(run))


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("PDF", b"%PDF"), ("svg", b"<?xml")])
def test_the_ending_says_the_format_and_the_same_records_give_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, start: bytes
) -> None:
    _store(tmp_path)
    for name in ("one", "two"):
        assert _draw(tmp_path, f"{name}.{ending}") == 0
    content = (tmp_path / f"one.{ending}").read_bytes()
    assert content.startswith(start)
    assert content == (tmp_path / f"two.{ending}").read_bytes()
    heard = capsys.readouterr()
    assert (heard.out, heard.err.splitlines()[-1]) == ("", f"Written: {tmp_path / f'two.{ending}'}")


@pytest.mark.parametrize(
    ("have", "write", "said"),
    [
        ("runs", "ages.jpg", "--write must end in .png, .pdf, .svg, not "),
        ("runs", "no/such/ages.png", "--write: there is no folder "),
        ("nothing", "ages.png", "There is no folder "),
        ("no runs", "ages.png", f"No complete run of {STUDY} has the ages of its classes over time."),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], have: str, write: str, said: str
) -> None:
    if have == "runs":
        _store(tmp_path)
    elif have == "no runs":
        (tmp_path / "results").mkdir()
    assert _draw(tmp_path, write) == 2
    heard = capsys.readouterr()
    assert heard.err.startswith(f"aol: {said}")
    assert (heard.out, heard.err.count("\n"), (tmp_path / write).exists()) == ("", 1, False)


def test_without_matplotlib_it_is_said_how_to_install_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _store(tmp_path)
    for name in [module for module in sys.modules if module.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert _draw(tmp_path) == 1
    assert "drawing figures needs matplotlib, which is not installed: pip install '.[lab]'" in capsys.readouterr().err
