"""Figures as files: every format, any size, any name; and the style they share."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from aol.report.figures.heatmap import draw, heatmap
from tests.support.made_runs import PAYLOADS, frame, make_data


def texts(axes: object, which: str) -> list[str]:
    return [label.get_text() for label in getattr(axes, f"get_{which}ticklabels")()]


def test_it_is_drawn_from_2_to_1000_classes_in_every_format(tmp_path: Path) -> None:
    for classes, formats in ((2, ("png", "svg")), (1000, ("png", "pdf"))):
        counts = [max(2, 400 // (place + 1)) for place in range(classes)]
        data = make_data(names=[f"c{i}" for i in range(classes)], counts=counts, epochs=3)
        written = draw(frame(data), tmp_path / str(classes), formats)
        assert {path.suffix for path in written} == {f".{each}" for each in formats}
        assert {path.stem for path in written} == {"heatmap-none"}
        for path in written:
            assert path.stat().st_size > 1000
        for path in (each for each in written if each.suffix == ".png"):
            width, height = Image.open(path).size
            assert width == round(3.3 * 400)
            assert height < 1.4 * width


def test_fonts_travel_with_the_file_and_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = frame(make_data())
    first = draw(run, tmp_path / "a", ("pdf", "svg"))
    second = draw(run, tmp_path / "b", ("pdf", "svg"))
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
    pdf = (tmp_path / "a" / "heatmap-none.pdf").read_bytes()
    packed = [part for part in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.S) if part[:1] == b"x"]
    streams = b"".join(zlib.decompress(part) for part in packed)
    assert b"/FontFile2" in pdf + streams  # TrueType, embedded, not Type 3
    assert b"/Type3" not in pdf + streams
    svg = (tmp_path / "a" / "heatmap-none.svg").read_text()
    assert "<text" not in svg  # letters are outlines
    assert "<path" in svg
    known = r"https?://(www.w3.org|purl.org|creativecommons.org|matplotlib.org)"
    assert "http" not in re.sub(known, "", svg)  # names of formats and of their makers, nothing that is fetched


def test_names_of_any_kind_are_drawn_as_text_and_files_stay_in_their_folder(tmp_path: Path) -> None:
    data = make_data("../../$x_2$ </svg><script>, seed 0", names=PAYLOADS)
    written = draw(frame(data, make_data("none, seed 0")), tmp_path / "figures", ("svg",))
    assert all(path.parent == tmp_path / "figures" for path in written)
    assert {path.name for path in tmp_path.iterdir()} == {"figures"}
    for path in written:
        assert "<script" not in path.read_text()
    figure = heatmap(data.run)
    assert figure is not None
    assert texts(figure.axes[0], "y")[0] == "<script>w…/script>"


def test_methods_whose_names_make_the_same_file_have_files_of_their_own(tmp_path: Path) -> None:
    written = draw(frame(make_data("a b, seed 0"), make_data("a/b, seed 0")), tmp_path, ("png",))
    assert {"heatmap-a-b.png", "heatmap-a-b-2.png"} <= {path.name for path in written}


def test_nobodys_own_style_is_touched() -> None:
    before = dict(matplotlib.rcParams)
    heatmap(make_data().run)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("wrong", [("jpg",), (), ("png", "PNG")])
def test_wrong_formats_and_places_are_said_so(wrong: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="formats must be some of png, pdf, svg"):
        draw(frame(make_data()), tmp_path / "x", wrong)
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        draw(frame(make_data()), tmp_path / "file", ("png",))


def test_runs_without_this_or_that_are_drawn_as_far_as_they_go(tmp_path: Path) -> None:
    bare = make_data(samples=False, over_time={}, curves={})
    assert draw(frame(bare), tmp_path / "bare") == []
    assert draw(frame(), tmp_path / "none") == []
    assert len(draw(frame(make_data(epochs=1)), tmp_path / "one")) == 1
    gaps = make_data(samples=False)
    for values in (*gaps.run.over_time.values(), *gaps.run.curves.values()):
        values[::2] = np.nan
    assert draw(frame(gaps), tmp_path / "gaps")
    empty = make_data(counts=[9, 0, 0, 0, 0, 0], epochs=3)
    assert draw(frame(empty), tmp_path / "empty")
