"""The forest plot: values, intervals and references are where they belong, and the bytes of an SVG are reproducible."""

from __future__ import annotations

from aol.plots import style
from aol.plots.forest import Estimate, draw_forest

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


def test_an_svg_with_text_is_small_the_same_each_time_and_names_common_fonts() -> None:
    first, second = (style.rendered(draw_forest(BLOCKS, "gain", "paper"), "svg", text=True) for _ in range(2))
    assert first == second
    assert b">first</text>" in first
    assert b"sans-serif" in first
    assert len(first) < 15_000
