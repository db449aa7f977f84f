"""Maps of class age: one scale for all panels, its ends and exponents, and how classes are called."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from aol.report.figures import style
from aol.report.figures.heatmap import AgeMap, draw_ages


def _map(classes: int, *, epochs: int = 4, counts: list[int] | None = None, numbered: bool = True) -> AgeMap:
    age = 1.0 + np.random.default_rng(classes).random((epochs, classes))
    sizes = None if counts is None else np.array(counts)
    names = [f"{c}" for c in range(classes)]
    return AgeMap(age, np.arange(1, epochs + 1), sizes, names, "epoch", numbered)


@style.styled
def _drawn(*maps: AgeMap, largest: float = 100.0) -> Figure:
    figure, panels = style.panels(2.0, 1, len(maps))
    draw_ages(figure, panels, maps, largest=largest)
    return figure


def _texts(axes: object, which: str) -> list[str]:
    return [label.get_text() for label in getattr(axes, f"get_{which}ticklabels")()]


@pytest.mark.parametrize(("classes", "gamma"), [((10, 100), 0.35), ((100, 21), 0.5), ((20,), 0.35)])
def test_all_panels_share_one_scale_with_the_papers_exponent(classes: tuple[int, ...], gamma: float) -> None:
    figure = _drawn(*(_map(each) for each in classes), largest=13.0)
    norms = [axes.images[0].norm for axes in figure.axes if axes.images]
    assert [(norm.gamma, norm.vmin, norm.vmax) for norm in norms] == [(gamma, 1.0, 13.0)] * len(classes)  # type: ignore[attr-defined]
    assert len(figure.axes) == len(classes) + 1  # and one bar


@pytest.mark.parametrize(
    ("classes", "largest", "ticks"),
    [
        (10, 100.0, ["1", "2", "5", "10", "20", "50", "100"]),
        (100, 100.0, ["1", "5", "10", "20", "50", "100"]),
        (100, 13.0, ["1", "2", "5", "10", "13"]),
        (10, 12.0, ["1", "2", "5", "12"]),
        (10, 2.0, ["1", "2"]),
    ],
)
def test_the_end_of_the_scale_is_written_and_no_tick_beside_it(classes: int, largest: float, ticks: list[str]) -> None:
    assert _texts(_drawn(_map(classes), largest=largest).axes[-1], "y") == ticks


def test_numbered_classes_keep_their_numbers_and_sizes_however_many_there_are() -> None:
    few = _drawn(_map(3, counts=[5, 4000, 20])).axes[0]
    assert _texts(few, "y") == ["1 (n=4,000)", "2 (n=20)", "0 (n=5)"]
    many = _drawn(_map(101, counts=list(range(1, 102)))).axes[0]
    assert _texts(many, "y") == ["100 (n=101)", "75 (n=76)", "50 (n=51)", "25 (n=26)", "0 (n=1)"]
    assert {few.get_ylabel(), many.get_ylabel()} == {"class, head to tail"}
    for counts in (None, [7, 7, 7]):
        level = _drawn(_map(3, counts=counts)).axes[0]
        assert (_texts(level, "y"), level.get_ylabel()) == (["0", "1", "2"], "class")


def test_a_bar_has_an_arrow_only_where_a_class_is_older_than_its_end() -> None:
    assert [_drawn(_map(3), largest=end).axes[-1]._colorbar.extend for end in (3.0, 1.5)] == ["neither", "max"]  # type: ignore[attr-defined]
