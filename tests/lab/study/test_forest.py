"""The forest plot: values, intervals and references are where they belong, and the bytes of an SVG are reproducible."""

from __future__ import annotations

from aol.lab.study.forest import Estimate, draw_forest
from aol.report.figures import style

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
