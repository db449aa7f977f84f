"""Figures: no text is cut off by the edge, and none covers another; whatever a run has recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from aol.report.figures.heatmap import heatmap
from tests.support.made_runs import make_data


def out_of_view(axis: Axis) -> set[Text]:
    """The labels of ticks that lie beyond the ends of an axis: they are there, and not drawn."""
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    away = [tick for tick in ticks if not low <= tick.get_loc() <= high]
    return {label for tick in away for label in (tick.label1, tick.label2)}


def written(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, and its box; slanted ones have boxes that say little."""
    figure.draw_without_rendering()
    hidden = {text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in out_of_view(axis)}
    hidden |= {text for axes in figure.axes if not axes.get_visible() for text in axes.findobj(Text)}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    upright = [text for text in texts if text not in hidden and text.get_rotation() in (0.0, 90.0)]
    return [(text.get_text(), text.get_window_extent()) for text in upright]


def faults(figure: Figure) -> Iterator[str]:
    found = written(figure)
    assert found
    for place, (text, box) in enumerate(found):
        inside = min(box.x0, box.y0, figure.bbox.width - box.x1, figure.bbox.height - box.y1)
        if inside < -0.5:
            yield f"{text!r} is cut by {-inside:.1f}"
        for other, its in found[:place]:
            wide, high = min(box.x1, its.x1) - max(box.x0, its.x0), min(box.y1, its.y1) - max(box.y0, its.y0)
            if wide > 1.0 and high > 1.0:
                yield f"{text!r} covers {other!r}"


TEN = [5000 // 2**place for place in range(10)]
RUNS = {
    "two, a stream": make_data(names=["cat", "dog"], counts=[50, 5], samples=False, settings={"scenario": "stream"}),
    "ten": make_data(names=list("abcdefghij"), counts=TEN),
    "long names": make_data(names=[f"quite a long name of class {c}" for c in range(12)]),
    "hundred": make_data(names=[f"c{c}" for c in range(100)], counts=[max(2, 500 - 5 * c) for c in range(100)]),
    "one epoch": make_data(epochs=1, samples=False),
}


@pytest.mark.parametrize("name", RUNS)
def test_nothing_written_in_a_figure_is_cut_or_covered(name: str) -> None:
    figure = heatmap(RUNS[name].run)
    assert figure is not None
    assert [*faults(figure)] == []


def test_classes_of_about_one_size_have_no_head_and_no_tail() -> None:
    """So it is on a stream whose head moves: all of the set passes by."""
    data = make_data(names=list("abcdef"), counts=[142, 146, 139, 145, 146, 140])
    shown = heatmap(data.run)
    assert shown is not None
    assert [label.get_text() for label in shown.axes[0].get_yticklabels()] == list("abcdef")
    assert shown.axes[0].get_ylabel() == "class"
