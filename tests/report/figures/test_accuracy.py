"""Figures of all runs together: means, bands and bars are those of the seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aol.records.compare import by_method, parts
from aol.report.figures import draw
from aol.report.figures.accuracy import MOST, accuracy_curves, curve, foremost, head_middle_tail
from aol.report.run_data import RunData
from tests.support.made_runs import changed, frame, make_data


def texts(axes: object, which: str) -> list[str]:
    return [label.get_text() for label in getattr(axes, f"get_{which}ticklabels")()]


def seeds_of(name: str, finals: list[float], **settings: object) -> list[RunData]:
    runs = []
    for seed, final in enumerate(finals):
        data = make_data(f"{name}, seed {seed}", seed=seed, epochs=6, samples=False)
        values = np.linspace(0.1, final, 6)
        by_class = {"test_accuracy": np.tile(values[:, None], (1, 6)) * np.linspace(1, 0.5, 6)}
        given = {"weighting": name.split(" ")[0], "rho": 0.5} | settings | {"seed": seed}
        runs.append(
            changed(data, curves={"test_accuracy": values}, over_time=data.run.over_time | by_class, settings=given)
        )
    return runs


def test_curves_are_means_over_seeds_with_a_band_of_one_deviation() -> None:
    figure = accuracy_curves(by_method(frame(*seeds_of("none", [0.5, 0.7, 0.9]), *seeds_of("aol ρ=0.5", [0.8]))))
    assert figure is not None
    (axes,) = figure.axes
    first, second = axes.lines
    runs = np.stack([np.linspace(0.1, final, 6) for final in (0.5, 0.7, 0.9)])
    assert first.get_ydata() == pytest.approx(100 * runs.mean(0))
    assert first.get_xdata() == pytest.approx(range(1, 7))
    assert second.get_ydata() == pytest.approx(100 * np.linspace(0.1, 0.8, 6))
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert float(np.asarray(corners)[:, 1].max()) == pytest.approx(100 * (0.7 + 0.2))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["none (3 seeds)", "aol ρ=0.5"]
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()


def test_a_reading_taken_now_and_then_is_drawn_where_all_seeds_have_it() -> None:
    one, two = seeds_of("none", [0.5, 0.9])
    one.run.curves["test_accuracy"][[0, 2]] = np.nan
    two.run.curves["test_accuracy"][[2, 4]] = np.nan
    assert curve(by_method(frame(one, two))["none"]).index.tolist() == [2, 4, 6]
    assert accuracy_curves(by_method(frame(changed(one, curves={})))) is None


def test_of_too_many_methods_the_first_and_the_best_are_drawn() -> None:
    many = by_method(frame(*(data for number in range(20) for data in seeds_of(f"m{number}", [0.3 + 0.02 * number]))))
    wanted = [f"m{number}" for number in range(20) if number == 0 or number >= 20 - MOST + 1]
    assert list(foremost(many)) == wanted
    figure = accuracy_curves(many)
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == wanted


def test_bars_are_the_accuracies_of_head_middle_and_tail() -> None:
    runs = seeds_of("none", [0.5, 0.7]) + seeds_of("aol ρ=0.5", [0.9])
    figure = head_middle_tail(by_method(frame(*runs)))
    assert figure is not None
    (axes,) = figure.axes
    groups = [container for container in axes.containers if hasattr(container, "patches")]
    heights = [[bar.get_height() for bar in group.patches] for group in groups]
    third = parts(runs[0].run.counts).values()
    scale = np.linspace(1, 0.5, 6)
    for found, final in zip(heights, (0.6, 0.9), strict=True):
        wanted = [100 * final * scale[classes].mean() for classes in (*third, np.arange(6))]
        assert found == pytest.approx(wanted)
    names = texts(axes, "x")
    assert [name.split("\n")[0] for name in names] == ["head (2)", "middle (2)", "tail (2)", "all classes"]
    assert names[0].split("\n")[1] == "n = 36–60"
    failed = [changed(data, failed_at_epoch=3) for data in seeds_of("aol ρ=0.5", [0.9])]
    alone = head_middle_tail(by_method(frame(*seeds_of("none", [0.5]), *failed)))
    assert alone is not None
    assert [text.get_text() for text in alone.legends[0].get_texts()] == ["none"]


def test_methods_on_classes_of_other_sizes_have_bars_of_their_own(tmp_path: Path) -> None:
    (cb,) = seeds_of("cb", [0.5])
    other = changed(cb, counts=[3 * count for count in cb.run.counts or ()][::-1], name="other")
    written = draw(frame(*seeds_of("none", [0.5]), other, *seeds_of("aol", [0.5])), tmp_path)
    assert [path.name for path in written if "tail" in path.name] == ["head-middle-tail.png", "head-middle-tail-2.png"]
