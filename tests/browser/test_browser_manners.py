"""Light and dark, keyboard, print, a phone, and a page that follows its runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from aol.report.page import write_page
from tests.support.made_runs import make_data
from tests.support.opened import Open, settle

COLOURS = """(selector) => {
    const seen = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const found = getComputedStyle(at).backgroundColor;
            if (found !== 'rgba(0, 0, 0, 0)' && found !== 'transparent') return found;
        }
        return getComputedStyle(document.body).backgroundColor;
    };
    const node = document.querySelector(selector);
    return [getComputedStyle(node).color, seen(node)];
}"""
PARTS = (
    "body", "#subtitle", "#advice-list p", "a", ".chip", "#class-table td", "#class-table caption", "dt",
    "#gallery .quiet", "#theme input:checked + span", "#run-table tr.chosen td", "#tip",
)  # fmt: skip


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    dark, light = sorted((luminance(one), luminance(two)))
    return (light + 0.05) / (dark + 0.05)


def ground(page: Page, of: str = "body") -> str:
    return str(page.evaluate("(of) => getComputedStyle(document.querySelector(of)).backgroundColor", of))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(open_page: Open, page_file: Path, scheme: str) -> None:
    page = open_page(page_file, color_scheme=scheme)
    for selector in PARTS:
        text, behind = page.evaluate(COLOURS, selector)
        assert contrast(text, behind) >= 4.5, (selector, text, behind)
    for place in range(8):
        line = page.locator("#run-table .swatch path").first.evaluate(
            "(node, name) => { node.style.stroke = `var(${name})`; return getComputedStyle(node).stroke; }",
            f"--series-{place}",
        )
        assert contrast(line, ground(page, of="#curves")) >= 3.0, (place, line)


def test_colours_follow_the_system_until_the_viewer_chooses(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file, color_scheme="dark")
    dark = ground(page)
    page.emulate_media(color_scheme="light")
    light = ground(page)
    assert luminance(dark) < 0.02 < 0.9 < luminance(light)
    page.locator("#theme").get_by_text("Dark").click()
    assert ground(page) == dark
    axis = page.locator("#curve-charts svg .role-axis-label text").first
    assert luminance(axis.evaluate("node => getComputedStyle(node).fill")) > 0.3
    page.emulate_media(color_scheme="dark")
    page.locator("#theme").get_by_text("Light").click()
    assert ground(page) == light
    assert luminance(axis.evaluate("node => getComputedStyle(node).fill")) < 0.2


def test_lines_differ_in_more_than_colour(page: Page) -> None:
    dashes = [line.get_attribute("stroke-dasharray") for line in page.locator("#run-table .swatch path").all()]
    assert len(set(dashes)) == len(dashes) == 2


def test_eight_methods_have_eight_colours_and_further_ones_another_dash(open_page: Open, tmp_path: Path) -> None:
    write_page([make_data(f"method {place}", epochs=3, seed=place) for place in range(10)], tmp_path / "many.html")
    page = open_page(tmp_path / "many.html")
    lines = [
        (line.evaluate("node => getComputedStyle(node).stroke"), line.get_attribute("stroke-dasharray"))
        for line in page.locator("#method-table .swatch path").all()
    ]
    assert len(lines) == len(set(lines)) == 10
    bars = page.locator("#method-bars .mark-rect path").all()
    fills = [bar.evaluate("node => getComputedStyle(node).fill") for bar in bars]
    assert set(fills) == {colour for colour, _ in lines[:8]}
    assert len(set(fills)) == 8


@pytest.mark.parametrize(("width", "methods"), [(1440, 2), (390, 2), (1440, 8), (390, 4)])
def test_numbers_on_bars_do_not_collide(open_page: Open, tmp_path: Path, width: int, methods: int) -> None:
    write_page([make_data(f"method {place}", epochs=3, seed=place) for place in range(methods)], tmp_path / "bars.html")
    page = open_page(tmp_path / "bars.html", viewport={"width": width, "height": 900})
    boxes = [text.bounding_box() for text in page.locator("#method-bars .mark-text.role-mark text").all()]
    spans = sorted((box["x"], box["x"] + box["width"]) for box in boxes if box)
    assert len(spans) in (0, 4 * methods)
    assert bool(spans) == (methods == 2)
    assert all(right <= left for (_, right), (left, _) in pairwise(spans))


def focused(page: Page) -> str:
    return str(
        page.evaluate("""() => {
        const at = document.activeElement;
        return at.id || at.dataset.key || at.getAttribute('aria-roledescription') || at.value || at.textContent;
    }""")
    )


def test_everything_can_be_reached_with_tab_in_the_order_of_the_page(page: Page) -> None:
    visited: list[str] = []
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement === document.body"):
            break
        visited.append(focused(page))
        outline = page.evaluate("""() => {
            const at = document.activeElement;
            const shown = at.type === 'radio' ? at.nextElementSibling : at;
            return getComputedStyle(shown).outlineStyle;
        }""")
        assert outline != "none", visited[-1]
    assert visited[0] == "Skip to the content"
    wanted = [
        "auto", "pick-run", "pick-class", "show-0", "run-0", "pick-curve", "pick-reading", "pick-order", "heatmap",
        "find-class", "sort-name", "class-0", "unsure", "Licences of the chart library in this page",
    ]  # fmt: skip
    places = [visited.index(each) for each in wanted]
    assert places == sorted(places)


def test_the_table_is_sorted_and_runs_and_classes_are_chosen_with_keys(page: Page) -> None:
    page.locator("[data-key=sort-count]").focus()
    page.keyboard.press("Enter")
    head = page.locator("#class-table th", has=page.locator("[data-key=sort-count]"))
    expect(head).to_have_attribute("aria-sort", "descending")
    assert focused(page) == "sort-count"  # drawn anew, and the keyboard is where it was
    page.keyboard.press("Space")
    expect(head).to_have_attribute("aria-sort", "ascending")
    page.locator("[data-key=class-3]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#pick-class")).to_have_value("class 3")
    assert focused(page) == "class-3"
    page.locator("[data-key=run-1]").focus()
    page.keyboard.press("Space")
    expect(page.locator("#pick-run")).to_have_value("1")
    page.locator("#theme input[value=auto]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_the_heatmap_is_read_and_zoomed_with_keys(page: Page) -> None:
    page.locator("#heat-charts .chart").first.focus()
    page.keyboard.press("ArrowDown")
    assert "class 0, 60 samples, epoch 12" in page.locator("#heat-readout").inner_text()
    for key in ("ArrowDown", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    assert "class 1, 36 samples, epoch 10" in page.locator("#heat-readout").inner_text()
    page.keyboard.press("+")
    settle(page)
    assert page.evaluate("() => document.activeElement.getAttribute('aria-roledescription')") == "heatmap"
    assert "zoom=" in page.url
    page.keyboard.press("0")
    settle(page)
    assert "zoom=" not in page.url
    page.keyboard.press("Enter")
    expect(page.locator("#pick-class")).to_have_value("class 1")


NAMELESS = """() => {
    const named = (each) => each.getAttribute('aria-label') || each.alt || each.textContent.trim()
        || [...each.labels ?? []].some(label => label.textContent.trim())
        || document.getElementById(each.getAttribute('aria-labelledby'));
    const all = document.querySelectorAll('button, a, input, select, img, svg[role=img], [tabindex="0"]');
    return [...all].filter(each => !named(each)).map(each => each.outerHTML.slice(0, 120));
}"""


def test_every_control_and_picture_has_a_name(page: Page) -> None:
    assert page.evaluate(NAMELESS) == []
    ids = [each.get_attribute("id") for each in page.locator("[id]").all()]
    assert len(ids) == len(set(ids))


def test_it_prints_black_on_white_without_controls(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file, color_scheme="dark")
    page.emulate_media(media="print")
    assert ground(page) == "rgb(255, 255, 255)"
    for selector in ("nav.bar", "#theme", "#heat-controls", ".command button"):
        assert not page.locator(selector).first.is_visible(), selector
    printed = ("#run-table", "#advice-list", "#heat-charts svg", "#class-table", "#gallery", "#error-list")
    for selector in (*printed, "#settings-body"):
        assert page.locator(selector).first.is_visible(), selector
    axis = page.locator("#curve-charts svg .role-axis-label text").first
    assert luminance(axis.evaluate("node => getComputedStyle(node).fill")) < 0.2
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_on_paper_nothing_is_cut_and_no_word_falls_to_pieces(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file, viewport={"width": 720, "height": 1000})  # what an A4 page has between its margins
    page.emulate_media(media="print")
    settle(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 720
    for answer in page.locator("#gallery dd").all()[:12]:
        box = answer.bounding_box()
        assert box is not None
        assert box["width"] > 60


def test_on_paper_small_charts_stand_side_by_side_and_no_heading_alone(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file)
    page.set_viewport_size({"width": 720, "height": 1000})
    page.emulate_media(media="print")
    settle(page)
    boxes = [chart.bounding_box() for chart in page.locator("#curve-charts .chart").all()]
    assert len({box["y"] for box in boxes[:2] if box}) == 1
    wide = [chart.bounding_box() for chart in page.locator("#heat-charts .chart").all()]
    assert [box["width"] > 600 for box in wide if box] == [True, True]  # two, drawn wide: one below the other
    assert page.evaluate("() => getComputedStyle(document.getElementById('heat-controls')).breakAfter") == "avoid"


def test_names_of_usual_length_stand_whole_beside_their_picture(open_page: Open, tmp_path: Path) -> None:
    write_page([make_data(names=["chimpanzee", "lawn_mower", "motorcycle", "maple_tree"])], tmp_path / "names.html")
    page = open_page(tmp_path / "names.html")
    for label in page.locator("#gallery .sample dd:nth-of-type(1)").all()[:12]:
        box = label.bounding_box()
        assert box is not None
        assert box["height"] < 30, label.inner_text()


def test_long_names_of_runs_stand_whole_above_their_heatmaps(open_page: Open, tmp_path: Path) -> None:
    name = "cb+aol β=0.9999 ρ=0.3 mechanism=resample level=sample imbalance=100"
    write_page([make_data(f"{name}, seed {seed}", seed=seed) for seed in (0, 1)], tmp_path / "long.html")
    page = open_page(tmp_path / "long.html", viewport={"width": 390, "height": 900})
    for seed, chart in enumerate(page.locator("#heat-charts .chart svg").all()):
        title = chart.locator(".role-title-text")
        assert " ".join(title.locator("tspan").all_text_contents()) == f"{name}, seed {seed}"
        inner, box = (shown.bounding_box() or {} for shown in (title, chart))
        assert inner["x"] + inner["width"] <= box["x"] + box["width"]


def test_numbers_below_the_colour_scale_keep_apart(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file)
    page.get_by_label("Colour shows").select_option(label="Test accuracy")
    settle(page)
    texts = page.locator("#heat-legend .role-legend-label text").all()
    shown = [text.bounding_box() for text in texts if text.evaluate("e => getComputedStyle(e).opacity") != "0"]
    boxes = sorted((box for box in shown if box), key=lambda box: box["x"])
    assert len(boxes) >= 3
    for left, right in pairwise(boxes):
        assert right["x"] - left["x"] - left["width"] >= 4


def test_epochs_are_whole_numbers_and_each_stands_once(open_page: Open, tmp_path: Path) -> None:
    write_page([make_data(epochs=2)], tmp_path / "two.html")
    page = open_page(tmp_path / "two.html")
    for charts in ("#curve-charts", "#heat-charts"):
        axis = page.locator(f"{charts} .chart").first.locator(".role-axis:has(.role-axis-label text)").first
        assert axis.locator(".role-axis-label text").all_text_contents() == ["1", "2"]


def test_a_phone_shows_all_of_it_without_scrolling_sideways(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file, viewport={"width": 360, "height": 740}, has_touch=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
    for chart in page.locator(".chart svg").all():
        box = chart.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 361
    page.locator("#heat-charts svg image").first.tap(position={"x": 60, "y": 60})
    assert "epoch" in page.locator("#tip").inner_text()


def test_charts_follow_the_width_of_the_window(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file)
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_timeout(400)
    settle(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 500
    box = page.locator("#heat-charts svg").first.bounding_box()
    assert box is not None
    assert 380 < box["width"] <= 500
