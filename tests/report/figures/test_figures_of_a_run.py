"""Figures: what is drawn is what was recorded: arrays, lines, ticks, colours at known places."""

from __future__ import annotations

import re
from io import BytesIO

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import PowerNorm
from PIL import Image

from aol.report.figures import style
from aol.report.figures.accuracy import accuracy_curves, head_middle_tail
from aol.report.figures.heatmap import heatmap
from aol.report.figures.observation import correlations, observation, observed
from aol.report.figures.summary import correlation, parts
from aol.report.figures.survival import survival, survival_by_part
from aol.report.figures.weights import weights
from aol.report.run_data import RunData
from tests.support.made_runs import changed, make_data, method_of


def pixels(figure: object) -> np.ndarray:
    """The figure as it is drawn, `uint8 [H, W, 3]`."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=200)  # type: ignore[attr-defined]
    return np.asarray(Image.open(buffer).convert("RGB"))


def at(figure: object, x: float, y: float) -> tuple[int, int, int]:
    """The colour at a place in data coordinates of the first panel."""
    shown = pixels(figure)
    figure.set_dpi(200)  # type: ignore[attr-defined]
    column, row = figure.axes[0].transData.transform((x, y))  # type: ignore[attr-defined]
    return tuple(int(v) for v in shown[shown.shape[0] - 1 - int(row), int(column)])  # type: ignore[return-value]


def texts(axes: object, which: str) -> list[str]:
    return [label.get_text() for label in getattr(axes, f"get_{which}ticklabels")()]


def tail_first(**changes: object) -> RunData:
    """A data whose first class is its smallest, so that order matters."""
    return make_data(names=["rare", "common", "usual"], counts=[5, 60, 20], epochs=8, **changes)  # type: ignore[arg-type]


def test_the_heatmap_shows_every_age_head_on_top_in_the_papers_colours() -> None:
    data = tail_first()
    figure = heatmap(data.run)
    assert figure is not None
    axes, bar = figure.axes
    (image,) = axes.images
    wanted = data.run.over_time["age"][:, [1, 2, 0]].T
    assert np.asarray(image.get_array()) == pytest.approx(wanted)
    assert isinstance(image.norm, PowerNorm)
    assert (image.norm.gamma, image.norm.vmin, image.norm.vmax) == (0.35, 1.0, 100.0)
    assert texts(axes, "y") == ["common", "usual", "rare"]
    assert texts(bar, "y") == ["1", "2", "5", "10", "20", "50", "100"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "class, head to tail")
    assert bar.get_ylabel() == "class age (epochs)"


def test_the_colours_at_known_places_of_the_heatmap_are_those_of_the_ages() -> None:
    ages = np.tile([1.0, 100.0, 10.0], (8, 1))
    ages[3, 1] = 400.0  # saturates
    ages[5, 2] = np.nan  # grey
    data = tail_first(samples=False)
    data = changed(data, over_time=data.run.over_time | {"age": ages})
    figure = heatmap(data.run)
    assert figure is not None
    shades = matplotlib.colormaps["magma"]

    def shade(age: float) -> tuple[int, ...]:
        return tuple(round(255 * v) for v in shades(((age - 1) / 99) ** 0.35)[:3])

    for (epoch, row), wanted in {(1, 2): shade(1), (2, 0): shade(100), (4, 0): shade(100), (2, 1): shade(10)}.items():
        assert at(figure, epoch, row) == pytest.approx(wanted, abs=3), (epoch, row)
    assert at(figure, 6, 1) == pytest.approx((189, 189, 189), abs=2)
    assert figure.axes[1].get_ylabel() == "class age (epochs)"


def test_many_classes_are_counted_instead_of_named_and_have_the_other_exponent() -> None:
    data = make_data(names=[f"c{i}" for i in range(120)], counts=[1000 - 8 * i for i in range(120)], epochs=4)
    figure = heatmap(data.run)
    assert figure is not None
    axes = figure.axes[0]
    assert axes.images[0].norm.gamma == 0.5  # type: ignore[union-attr]
    assert texts(axes, "y")[0] == "1  (n=1,000)"
    assert texts(axes, "y")[-1] == "120  (n=48)"
    assert len(texts(axes, "y")) == 5


def test_epochs_on_the_heatmap_are_those_on_record() -> None:
    data = changed(tail_first(samples=False), epochs=np.arange(11, 19))
    figure = heatmap(data.run)
    assert figure is not None
    assert figure.axes[0].get_xlim() == (10.5, 18.5)


def test_the_observation_shows_size_age_and_accuracy_of_every_class() -> None:
    data = tail_first()
    figure, values = observation(data.run), observed(data.run)
    assert figure is not None
    assert values is not None
    assert values[0] == pytest.approx(data.run.over_time["age"].mean(0))
    assert values[1] == pytest.approx(data.run.over_time["test_accuracy"][-1])
    order = [1, 2, 0]
    wanted = (np.asarray(data.run.counts)[order], values[0][order], 100 * values[1][order])
    for axes, numbers in zip(figure.axes, wanted, strict=True):
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(numbers)
    assert texts(figure.axes[2], "x") == ["common", "usual", "rare"]
    found = correlation(*values)
    assert found is not None
    (text,) = figure.axes[2].texts
    assert text.get_text() == f"r(age, accuracy) = {found.r:.2f}".replace("-", "−")


def test_sizes_that_span_decades_are_drawn_on_a_log_scale_without_bars() -> None:
    data = make_data(names=list("abc"), counts=[5000, 200, 9], epochs=3)
    figure = observation(data.run)
    assert figure is not None
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    assert not axes.patches
    assert axes.lines[0].get_ydata() == pytest.approx([5000, 200, 9])
    figure.draw_without_rendering()
    shown = [text for text in texts(axes, "y") if text]
    assert shown
    assert all(re.fullmatch(r"[0-9.,]+", text) for text in shown)


def test_scatter_plots_show_every_class_and_say_r_with_its_interval() -> None:
    data = make_data(epochs=20)
    figure, values = correlations(data.run), observed(data.run)
    assert figure is not None
    assert values is not None
    by_name = {axes.get_ylabel(): axes for axes in figure.axes if axes.get_visible()}
    assert by_name.keys() == {"samples", "test accuracy (%)", "training loss", "training margin"}
    for name, column, scale in (("test accuracy (%)", "test_accuracy", 100), ("training loss", "train_loss", 1)):
        points = np.asarray(by_name[name].collections[0].get_offsets())
        numbers = scale * data.run.over_time[column][-1]
        assert points == pytest.approx(np.stack((values[0], numbers), axis=1))
        found = correlation(values[0], numbers)
        assert found is not None
        wanted = f"r = {found.r:.2f} [{found.low:.2f}, {found.high:.2f}]".replace("-", "−")
        assert by_name[name].get_title(loc="right") == wanted


def test_weights_are_a_line_a_class_from_head_to_tail() -> None:
    data = tail_first()
    figure = weights(data.run)
    assert figure is not None
    axes, bar = figure.axes
    drawn = axes.lines[:3]
    for line, c in zip(drawn, [1, 2, 0], strict=True):
        assert line.get_ydata() == pytest.approx(data.run.over_time["weight"][:, c])
    assert texts(bar, "y") == ["common", "usual", "rare"]
    assert len({line.get_color() for line in drawn}) == 3
    assert weights(changed(data, over_time={"weight": np.ones((8, 3))}).run) is None


def test_of_many_classes_head_middle_and_tail_are_drawn_in_bold() -> None:
    data = make_data(names=[f"c{i}" for i in range(60)], counts=list(range(60, 0, -1)), epochs=5, samples=False)
    figure = weights(data.run)
    assert figure is not None
    bold = [line for line in figure.axes[0].lines if line.get_linewidth() > 1.5]
    for line, part in zip(bold, parts(data.run.counts), strict=True):
        assert line.get_ydata() == pytest.approx(data.run.over_time["weight"][:, part.classes].mean(1))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["head", "middle", "tail"]


def test_epochs_without_weights_are_gaps() -> None:
    data = make_data(names=[f"c{i}" for i in range(60)], counts=list(range(60, 0, -1)), epochs=5, samples=False)
    data.run.over_time["weight"][1] = np.nan
    figure = weights(data.run)
    assert figure is not None
    for line in figure.axes[0].lines[:-1]:
        assert np.isnan(np.asarray(line.get_ydata(), dtype=float)).tolist() == [False, True, False, False, False]


def test_survival_is_drawn_by_part_with_its_band_and_marks_what_is_censored() -> None:
    data = make_data(epochs=15)
    assert data.samples is not None
    figure, found = survival(data.run, data.samples), survival_by_part(data.run, data.samples)
    assert figure is not None
    (axes,) = figure.axes
    steps = axes.lines[::2]
    for line, marks, (part, told, estimate) in zip(steps, axes.lines[1::2], found, strict=True):
        assert line.get_drawstyle() == "steps-post"
        assert line.get_ydata() == pytest.approx(estimate.share)
        assert np.asarray(marks.get_xdata()).tolist() == np.flatnonzero(told.open).tolist()
        wanted = f"{part.name}: {told.count:,} episodes, {int(told.open.sum()):,} still open"
        assert line.get_label() == wanted
    assert len(axes.collections) == len(found) == 3


def test_every_figure_of_a_stream_counts_steps() -> None:
    data = tail_first(samples=False)
    data = changed(data, settings=data.run.settings | {"scenario": "stream"})
    drawn = [heatmap(data.run), weights(data.run), accuracy_curves([method_of("none", data)])]
    assert [figure.axes[0].get_xlabel() for figure in drawn if figure is not None] == ["step"] * 3
    seen, scattered = observation(data.run), correlations(data.run)
    assert seen is not None
    assert scattered is not None
    assert seen.axes[1].get_ylabel().split() == ["mean", "age", "(steps)"]
    assert scattered.get_supxlabel() == "mean age (steps)"


def test_a_single_epoch_is_one_tick_and_its_weights_are_dots() -> None:
    data = make_data(epochs=1)
    for figure in (heatmap(data.run), weights(data.run), accuracy_curves([method_of("none", data)])):
        assert figure is not None
        assert texts(figure.axes[0], "x") == ["1"]
    dots = weights(data.run)
    assert dots is not None
    assert {line.get_marker() for line in dots.axes[0].lines[:6]} == {"o"}


def test_a_weight_of_zero_is_drawn() -> None:
    data = tail_first()
    weight = np.tile([2.9, 0.1, 0.0], (8, 1))
    figure = weights(changed(data, over_time=data.run.over_time | {"weight": weight}).run)
    assert figure is not None
    assert figure.axes[0].get_yscale() == "linear"
    assert figure.axes[0].get_ylim()[0] <= 0.0
    figure = weights(changed(data, over_time=data.run.over_time | {"weight": weight + 0.01}).run)
    assert figure is not None
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_ylabel().split() == ["class", "weight", "(mean", "one,", "log", "scale)"]


def test_ages_stand_on_a_one_that_is_written_there() -> None:
    figure = observation(tail_first().run)
    assert figure is not None
    assert figure.axes[1].get_ylim()[0] == 1.0
    assert texts(figure.axes[1], "y")[0] == "1"


def test_long_names_that_begin_alike_can_be_told_apart() -> None:
    names = [f"quite a long name of class {place}" for place in range(12)]
    data = make_data(names=names)
    shown = [figure for figure in (heatmap(data.run), observation(data.run), weights(data.run)) if figure is not None]
    found = [texts(shown[0].axes[0], "y"), texts(shown[1].axes[2], "x"), texts(shown[2].axes[1], "y")]
    for written in found:
        assert len(set(written)) == 12
        assert max(map(len, written)) <= 18
    assert style.shorten_all(["cat", "a very long name, but the only one"], 12) == ["cat", "a very long…"]


def test_whiskers_show_on_a_black_bar() -> None:
    """A method with the last colour, black: some of what is drawn at its whisker, within the bar, is white."""
    runs = [[make_data(f"m{k}, seed {s}", seed=s, counts=[20] * 6) for s in (0, 1)] for k in range(7)]
    for pair in runs:
        accuracy = pair[1].run.over_time["test_accuracy"] / 2
        pair[1] = changed(pair[1], over_time=pair[1].run.over_time | {"test_accuracy": accuracy})
    figure = head_middle_tail([method_of(f"m{k}", *pair) for k, pair in enumerate(runs)])
    assert figure is not None
    (bar,) = figure.axes[0].containers[-1].patches
    shown = pixels(figure)
    figure.set_dpi(200)
    corners = ((bar.get_x(), bar.get_height() * 0.8), (bar.get_x() + bar.get_width(), bar.get_height() * 0.9))
    (left, low), (right, high) = (figure.axes[0].transData.transform(corner).astype(int) for corner in corners)
    inside = shown[len(shown) - high : len(shown) - low, left + 2 : right - 2]
    assert inside.min() < 40
    assert inside.max() > 180
