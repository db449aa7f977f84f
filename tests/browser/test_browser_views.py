"""What a person does with the page: choose, sort, find, point, zoom."""

from __future__ import annotations

import base64
import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from aol.records.previews import Previews
from aol.report.page import write_page
from aol.report.run_data import AnswersOnTest, RunData
from tests.support.made_runs import changed, make_data
from tests.support.opened import Open, settle


def rows(page: Page, table: str, column: int) -> list[str]:
    return [row.locator("th, td").nth(column).inner_text() for row in page.locator(f"{table} tbody tr").all()]


def map_of(page: Page, place: int) -> Locator:
    return page.locator("#heat-charts .chart").nth(place).locator("svg image")


def point_at_cell(page: Page, place: int, epoch: float, row: float, epochs: int, classes: int) -> None:
    """Move to the middle of a cell; both count from zero."""
    map_of(page, place).scroll_into_view_if_needed()
    box = map_of(page, place).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * (epoch + 0.5) / epochs, box["y"] + box["height"] * (row + 0.5) / classes)


def map_picture(page: Page, place: int) -> np.ndarray:
    url = map_of(page, place).get_attribute("href") or map_of(page, place).get_attribute("xlink:href")
    assert url is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGBA"))


def test_runs_stand_side_by_side(page: Page, runs: list[RunData]) -> None:
    assert rows(page, "#run-table", 1) == [data.name for data in runs]
    for place, data in enumerate(runs):
        assert f"{100 * data.run.curves['test_accuracy'][-1]:.1f}%" in rows(page, "#run-table", 3)[place]
    assert page.locator("#heat-charts .chart").count() == 2
    page.get_by_label("Show aol").uncheck()
    settle(page)
    assert page.locator("#heat-charts .chart").count() == 1
    assert page.locator("#curve-charts .chart").first.locator("path[stroke]").count() >= 1
    page.get_by_label("Show aol").check()
    expect(page.locator("#heat-charts .chart")).to_have_count(2)


def test_methods_have_their_worst_class_head_and_tail(page: Page, runs: list[RunData]) -> None:
    assert rows(page, "#method-table", 0) == ["none", "aol ρ=0.5 class"]
    for place, data in enumerate(runs):
        assert rows(page, "#method-table", 1)[place] == "1"
        assert rows(page, "#method-table", 3)[place] == f"{100 * data.run.over_time['test_accuracy'][-1].min():.1f}%"
    assert page.locator("#method-bars .mark-rect path").count() == 8  # head, middle, tail, worst class; two methods


def test_the_class_table_sorts_both_ways_by_every_reading(page: Page, runs: list[RunData]) -> None:
    data = runs[0]
    assert page.locator("#class-table th[aria-sort=descending]").inner_text().startswith("Age")
    for key in ("count", "weight", "test_accuracy", "train_accuracy", "train_loss", "train_margin", "age"):
        values = np.asarray(data.run.counts) if key == "count" else data.run.over_time[key][-1]
        head = page.locator("#class-table thead th").filter(has=page.locator(f"[data-key=sort-{key}]"))
        head.get_by_role("button").click()
        right = data.run.over_time["test_accuracy"][-1]  # of equal values the worst class first
        down, up = ([data.run.classes[place] for place in np.lexsort((right, by))] for by in (-values, values))
        assert head.get_attribute("aria-sort") == "descending"
        assert rows(page, "#class-table", 0) == down
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert rows(page, "#class-table", 0) == up
        assert page.locator("#class-table th[aria-sort]:not([aria-sort=none])").count() == 1


def test_the_class_table_shows_the_last_readings(page: Page, runs: list[RunData]) -> None:
    data = runs[0]
    titles = [each.inner_text().strip(" ▼▲") for each in page.locator("#class-table thead th").all()]
    for row in page.locator("#class-table tbody tr").all():
        cells = dict(zip(titles, [cell.inner_text() for cell in row.locator("th, td").all()], strict=True))
        place = data.run.classes.index(cells["Class"])
        assert cells["Samples"] == str(data.run.counts[place])
        assert float(cells["Age"]) == pytest.approx(data.run.over_time["age"][-1, place], abs=0.006)
        assert cells["Test accuracy"] == f"{100 * data.run.over_time['test_accuracy'][-1, place]:.1f}%"
        margin = float(cells["Margin"].replace("−", "-"))
        assert margin == pytest.approx(data.run.over_time["train_margin"][-1, place], abs=0.006)
        assert row.locator("svg.spark path").get_attribute("d").count("L") >= 10  # type: ignore[union-attr]


def test_a_class_can_be_found(page: Page) -> None:
    page.get_by_label("Find a class").fill("CLASS 3")
    assert rows(page, "#class-table", 0) == ["class 3"]
    page.get_by_label("Find a class").fill("no such")
    assert rows(page, "#class-table", 0) == []
    expect(page.locator("#class-more")).to_have_text("Nothing to show.")


def test_a_class_filters_gallery_and_label_errors(page: Page) -> None:
    everything = page.locator("#gallery li").count()
    page.get_by_label("Class", exact=True).fill("class 2")
    page.get_by_label("Class", exact=True).press("Enter")
    labels = [card.locator("dd").first.inner_text() for card in page.locator("#gallery li").all()]
    assert set(labels) == {"class 2"}
    assert len(labels) < everything
    expect(page.locator("#error-list li")).to_have_count(0)
    expect(page.locator("#class-detail h3")).to_have_text("Class class 2 over time")
    page.get_by_role("button", name="All classes").click()
    assert page.locator("#gallery li").count() == everything
    assert page.locator("#error-list li").count() == 5


def test_the_gallery_shows_pictures_labels_answers_and_histories(page: Page, runs: list[RunData]) -> None:
    samples = runs[0].samples
    assert samples is not None
    first = page.locator("#gallery li").first
    assert "class 0" in first.inner_text()
    assert "class 1 (97%)" in first.inner_text()
    assert "13" in first.locator("dd").nth(2).inner_text()
    assert page.evaluate("() => [...document.images].every(each => each.complete && each.naturalWidth === 8)")
    ages = [int(card.locator("dd").nth(2).inner_text().split(",")[0]) for card in page.locator("#gallery li").all()]
    assert ages == sorted(samples.age.tolist(), reverse=True)[: len(ages)]
    assert "at most 13" in str(first.locator("svg").get_attribute("aria-label"))


def test_likely_label_errors_come_with_reasons(page: Page) -> None:
    cards = page.locator("#error-list li")
    assert sorted(each.split(",")[0] for each in page.locator("#error-list p.quiet").all_inner_texts()) == [
        "sample 0", "sample 12", "sample 3", "sample 6", "sample 9",
    ]  # fmt: skip
    assert cards.first.locator(".why").inner_text() == (
        "Wrong in 12 of 12 epochs, the last 12 in a row. On average another class got 90%, the label 0%. "
        "Now “class 1” gets 97%, the label “class 0” 1%."
    )
    page.get_by_label("include less clear cases").check()
    assert cards.count() > 5
    scores = [float(text.rpartition(" ")[2]) for text in page.locator("#error-list p.quiet").all_inner_texts()]
    assert [score > 0.5 for score in scores] == [True] * 5 + [False] * (len(scores) - 5)


def test_labels_are_enlarged_marked_filtered_and_exported_by_their_own_names(open_page: Open, tmp_path: Path) -> None:
    data = make_data(seed=0)
    assert data.samples is not None
    ids = [f"=evil/{row}, a.png" for row in range(len(data.samples))]
    write_page([changed(data, samples=replace(data.samples, ids=ids))], tmp_path / "marks.html")
    page = open_page(tmp_path / "marks.html", accept_downloads=True)
    expect(page.locator("#export-marks")).to_be_disabled()
    page.locator("#error-list .enlarge").first.click()
    expect(page.locator("#zoom")).to_be_visible()
    assert page.locator("#zoom img").evaluate("each => each.clientWidth") > 200
    first = page.locator("#zoom p.quiet").inner_text()
    page.locator("#zoom").get_by_role("button", name="Wrong label").click()
    page.keyboard.press("ArrowRight")
    assert page.locator("#zoom p.quiet").inner_text() != first
    page.keyboard.press("2")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("4")
    assert page.locator("#zoom .mark.accepted").inner_text() == "Use “class 1”"
    page.keyboard.press("Escape")
    expect(page.locator("#zoom")).to_be_hidden()
    assert (
        page.locator("#error-list .marked-wrong").count() == page.locator("#error-list .marked-ambiguous").count() == 1
    )
    assert page.locator("#error-list .marked-accepted").count() == 1
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.locator("#pick-marked").select_option("none")
    assert page.locator("#error-list li").count() == 2
    page.locator("#pick-marked").select_option("ambiguous")
    assert page.locator("#error-list li").count() == 1
    with page.expect_download() as download:
        page.locator("#export-marks").click()
    with download.value.path().open(newline="", encoding="utf-8-sig") as file:
        found = list(csv.DictReader(file))
    corrected = {row["mark"]: (row["corrected"], row["corrected_name"]) for row in found}
    assert corrected == {"wrong": ("", ""), "ambiguous": ("0", "class 0"), "accepted": ("1", "class 1")}
    for row in found:
        assert (row["index"], row["label"]) == (str(3 * ids.index(row["id"].removeprefix("'"))), "0")
        assert row["id"].removeprefix("'") in ids
        assert row["id"].startswith("'=")  # no formula for a spreadsheet
        assert (row["label_name"], row["prediction_name"], row["flagged"]) == ("class 0", "class 1", "True")


def test_marks_stay_with_their_data_set_when_the_file_is_written_for_another(open_page: Open, tmp_path: Path) -> None:
    data = make_data(seed=0)
    write_page([data], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.locator("#error-list .mark.wrong").first.click()
    expect(page.locator("#export-marks")).to_have_text("Export 1 mark as CSV")
    for name, count in (("another set", 0), ("made up", 1)):
        write_page([changed(data, settings=data.run.settings | {"data": name})], tmp_path / "page.html")
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert page.locator("#error-list .marked-wrong").count() == count
        expect(page.locator("#export-marks")).to_have_text(f"Export {'1 mark' if count else '0 marks'} as CSV")


def test_the_confusion_matrix_is_that_of_the_run(page: Page, runs: list[RunData]) -> None:
    samples = runs[0].samples
    assert samples is not None
    matrix = page.locator("#matrix svg")
    matrix.scroll_into_view_if_needed()
    assert matrix.locator(".mark-rect.role-mark path").count() == len(runs[0].run.classes) ** 2
    matrix.locator(".mark-rect.role-mark path").first.hover()
    count = int(((samples.label == 0) & (samples.prediction == 0)).sum())
    assert page.locator("#tip").inner_text().startswith(f"class 0, answered class 0\n{count} samples")


def test_a_cell_of_the_confusion_matrix_leads_to_its_test_samples(
    open_page: Open, tmp_path: Path, runs: list[RunData]
) -> None:
    label, prediction = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1], np.int32)
    some = np.full(4, 0.5, np.float32)
    tested = AnswersOnTest(label, prediction, some, some, Previews({}, {1: "the first"}), np.array([1, 2]))
    write_page([replace(runs[0], tested=tested)], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    assert page.locator("#tested-list li").all_inner_texts()[0].startswith("the first\nLabel\nclass 0 (50%)")
    matrix = page.locator("#matrix svg")
    assert "Confusion matrix, test samples" in str(matrix.text_content())
    assert {"1", "2"} <= set(matrix.locator(".mark-text text").all_text_contents())
    matrix.locator(".mark-rect.role-mark path").nth(1).click()
    expect(page.locator("#h-tested")).to_be_focused()
    expect(page.locator("#tested-about")).to_contain_text("class “class 0”, answered “class 1”: 2 test samples")
    page.locator("#clear-class").click()
    expect(page.locator("#tested-about")).to_contain_text("all classes")


def test_names_in_the_scatter_do_not_lie_on_each_other(open_page: Open, tmp_path: Path) -> None:
    data = make_data(names=[f"a long name {place}" for place in range(12)], counts=[40] * 12, samples=False)
    level = np.ones((12, 12))
    level[:, 0] = 3.0
    write_page([changed(data, over_time={"age": level})], tmp_path / "page.html")
    names = open_page(tmp_path / "page.html").locator("#scatter .mark-text text")
    assert sorted(name for name in names.all_text_contents() if "long" in name) == ["a long name 0", "a long name 1"]


def test_bars_of_sample_ages_stand_on_the_axis_and_rise_with_their_number(page: Page, runs: list[RunData]) -> None:
    samples = runs[0].samples
    assert samples is not None
    chart = page.locator("#sample-ages svg")
    chart.scroll_into_view_if_needed()
    boxes = [bar.bounding_box() for bar in chart.locator(".mark-rect.role-mark path").all()]
    counts = np.unique(samples.age, return_counts=True)[1]
    heights = np.log(counts / 0.7) / np.log(counts.max() / 0.7) * 120
    assert [box["height"] for box in boxes if box] == pytest.approx(heights.tolist(), abs=0.5)
    assert len({round(box["y"] + box["height"]) for box in boxes if box}) == 1


def test_where_no_label_error_is_likely_the_less_clear_ones_wait_for_a_tick(open_page: Open, tmp_path: Path) -> None:
    data = make_data(seed=0)
    assert data.samples is not None
    sure = replace(data.samples, mean_margin=np.full(len(data.samples), -0.9, np.float32))
    write_page([changed(data, samples=sure)], tmp_path / "sure.html")
    page = open_page(tmp_path / "sure.html")
    assert page.locator("#error-about").inner_text().startswith("No label of")
    assert page.locator("#error-list li").count() == 0
    page.get_by_label("include less clear cases").check()
    expect(page.locator("#error-list li:not(.likely)").nth(5)).to_be_visible()


def test_pointing_at_the_heatmap_reads_every_run(page: Page, runs: list[RunData]) -> None:
    order = np.argsort(-np.asarray(runs[0].run.counts), kind="stable")
    point_at_cell(page, 1, 3, 4, 12, 6)
    text = page.locator("#tip").inner_text()
    assert text.splitlines()[0] == f"class {order[4]}, {runs[0].run.counts[order[4]]} samples, epoch 4"
    for line, data in zip(text.splitlines()[1:], runs, strict=True):
        value = float(line.rpartition(" ")[2])
        assert line.startswith(f"{data.name}: age ")
        assert value == pytest.approx(data.run.over_time["age"][3, order[4]], abs=0.02)
    assert page.locator("#heat-readout").inner_text().startswith(f"class {order[4]}")
    page.mouse.move(2, 2)
    expect(page.locator("#tip")).to_be_hidden()


def test_the_heatmap_is_a_picture_of_the_ages_with_the_head_on_top(page: Page, runs: list[RunData]) -> None:
    data = runs[0]
    picture = map_picture(page, 0).astype(int)
    ages = data.run.over_time["age"][:, np.argsort(-np.asarray(data.run.counts), kind="stable")].T
    assert picture.shape == (*ages.shape, 4)
    bright = picture[..., 1]  # viridis: green grows with the value
    order = np.argsort(ages.ravel())
    assert (np.diff(bright.ravel()[order]) >= -2).all()
    top = max(range(2), key=lambda place: runs[place].run.over_time["age"].max())
    hottest = map_picture(page, top)[..., :3].reshape(-1, 3)
    assert [253, 231, 37] in hottest.tolist()  # the end of viridis: both maps share one scale


def test_other_readings_and_orders_can_be_drawn(page: Page, runs: list[RunData]) -> None:
    page.get_by_label("Colour shows").select_option(label="Test accuracy")
    page.get_by_label("Order").select_option(label="by name")
    settle(page)
    point_at_cell(page, 0, 11, 2, 12, 6)
    lines = page.locator("#tip").inner_text().splitlines()
    assert lines[0].startswith("class 2,")
    assert lines[1].endswith(f"test accuracy {100 * runs[0].run.over_time['test_accuracy'][11, 2]:.1f}%")


def test_a_box_zooms_in_and_a_double_click_zooms_out(page: Page) -> None:
    map_of(page, 0).scroll_into_view_if_needed()
    box = map_of(page, 0).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 2.5 / 12, box["y"] + box["height"] * 1.5 / 6)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 5.5 / 12, box["y"] + box["height"] * 3.5 / 6, steps=4)
    page.mouse.up()
    settle(page)
    assert map_picture(page, 0).shape[:2] == (3, 4)  # classes 1 to 3, epochs 3 to 6
    assert map_picture(page, 1).shape[:2] == (3, 4)
    point_at_cell(page, 0, 0, 0, 4, 3)
    assert page.locator("#tip").inner_text().startswith("class 1, 36 samples, epoch 3")
    page.get_by_role("button", name="Show all").click()
    settle(page)
    assert map_picture(page, 0).shape[:2] == (6, 12)
    page.get_by_role("button", name="Zoom in").click()
    settle(page)
    assert map_picture(page, 0).shape[0] < 6
    map_of(page, 0).dblclick()
    settle(page)
    assert map_picture(page, 0).shape[:2] == (6, 12)


def test_a_click_on_the_heatmap_chooses_the_class(page: Page) -> None:
    point_at_cell(page, 0, 5, 3, 12, 6)
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#pick-class")).to_have_value("class 3")
    expect(page.locator("#class-curves .chart")).to_have_count(4)


def test_curves_read_all_runs_at_one_epoch(page: Page, runs: list[RunData]) -> None:
    chart = page.locator("#curve-charts .chart").first.locator("svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] / 2)
    lines = page.locator("#tip").inner_text().splitlines()
    assert lines == ["epoch 12"] + [f"{s.name}: {100 * s.run.curves['test_accuracy'][-1]:.1f}%" for s in runs]
    page.get_by_label("Also show").select_option(label="Training accuracy")
    settle(page)
    assert "Training accuracy" in page.locator("#curve-charts").inner_text()


def test_the_scatter_names_the_class_under_the_pointer(page: Page, runs: list[RunData]) -> None:
    chart = page.locator("#scatter svg")
    chart.scroll_into_view_if_needed()
    point = chart.locator(".mark-symbol.role-mark path").first.bounding_box()
    assert point is not None
    page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    assert page.locator("#tip").inner_text().startswith("class 0\n60 samples, age ")
    page.mouse.click(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    expect(page.locator("#pick-class")).to_have_value("class 0")


def test_advice_leads_to_the_classes_it_is_about(page: Page) -> None:
    advice = page.locator("#advice-list li")
    assert advice.count() >= 2
    chip = advice.locator(".chip").first
    name = chip.inner_text()
    assert "none, seed 0" in page.locator("#advice-about").inner_text()
    chip.click()
    expect(page.locator("#pick-class")).to_have_value(name)
    expect(page.locator("h2:focus")).to_be_in_viewport()  # of the part that shows it
    expect(chip).to_have_attribute("aria-pressed", "true")
    chip.click()
    expect(page.locator("#pick-class")).to_have_value("")


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_the_heading_that_advice_leads_to_is_not_behind_the_bar(
    open_page: Open, page_file: Path, size: tuple[int, int]
) -> None:
    page = open_page(page_file, viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce")
    page.locator("#advice-list .chip").first.click()
    settle(page)
    bar, heading = page.locator("nav.bar").bounding_box(), page.locator("h2:focus").bounding_box()
    assert bar is not None
    assert heading is not None
    assert heading["y"] >= bar["y"] + bar["height"]


def test_settings_and_the_command_to_repeat_it(open_page: Open, page_file: Path, runs: list[RunData]) -> None:
    page = open_page(page_file, permissions=["clipboard-read", "clipboard-write"])
    assert page.locator(".command code").inner_text() == runs[0].run.command
    page.locator(".command button").click()
    expect(page.locator(".command button")).to_have_text("Copied")
    assert page.evaluate("() => navigator.clipboard.readText()") == runs[0].run.command
    assert "torch" in page.locator("#settings-body").inner_text()
    assert rows(page, "#settings-body table", 0) == ["weighting", "seed"]


def test_choices_are_kept_in_the_address(open_page: Open, page: Page, page_file: Path, runs: list[RunData]) -> None:
    page.locator("#pick-run").select_option(label=runs[1].name)
    page.get_by_label("Class", exact=True).fill("class 4")
    page.get_by_label("Class", exact=True).press("Enter")
    page.get_by_label("Colour shows").select_option(label="Weight")
    page.get_by_text("Dark").click()
    again = open_page(page_file, "#" + page.url.partition("#")[2])
    assert again.locator("#pick-run option:checked").inner_text() == runs[1].name
    expect(again.locator("#pick-class")).to_have_value("class 4")
    assert again.get_by_label("Colour shows").input_value() == "weight"
    assert again.evaluate("() => document.documentElement.dataset.theme") == "dark"


NONSENSE = (
    "run=nobody&klass=none&zoom=[1]&theme=%22x%22",
    "zoom=[9,1,9,1]&sort=7&down=1&shown=nobody",
    "%%%&&=",
    "sort=%22nope%22&reading=%22nope%22&order=%22nope%22&curve=%22nope%22",
)


def test_an_address_that_makes_no_sense_is_passed_over(page: Page, page_file: Path) -> None:
    for words in NONSENSE:
        page.goto("about:blank")
        page.goto(f"{page_file.as_uri()}#{words}")
        page.wait_for_selector("html[data-ready]")
        assert page.locator("#class-table tbody tr").count() == 6
        assert page.locator("#heat-charts svg image").count() == 2
