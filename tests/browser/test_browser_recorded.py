"""What the page shows follows from what was recorded: no loss, no ages, a stream, more samples than it can hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from aol.report.page import write_page
from tests.support.made_runs import changed, make_data
from tests.support.opened import Open, settle


def titles(page: Page, charts: str) -> list[str]:
    return page.locator(f"{charts} .role-title-text text").all_text_contents()


def test_no_reading_is_drawn_twice_whatever_was_recorded(open_page: Open, tmp_path: Path) -> None:
    data = make_data()
    curves = {"test_accuracy": data.run.curves["test_accuracy"], "lr": np.linspace(0.1, 0.01, 12)}
    own = curves | {"f1": data.run.curves["train_accuracy"]}
    wanted = {
        "loss": (data.run.curves, ["Training loss"]),
        "accuracy": (curves | {"train_accuracy": data.run.curves["train_accuracy"]}, ["Training accuracy"]),
        "own": (own, ["f1"]),
        "little": (curves, []),
        "least": ({"test_accuracy": curves["test_accuracy"]}, []),
    }
    for name, (read, third) in wanted.items():
        write_page([changed(data, curves=read)], tmp_path / f"{name}.html")
        page = open_page(tmp_path / f"{name}.html")
        assert titles(page, "#curve-charts") == ["Test accuracy", "Mean class age", *third], name
        assert page.get_by_label("Also show").count() == (name != "least")
    repeated = {"test_balanced_accuracy": curves["test_accuracy"], "test_worst_class": curves["test_accuracy"] / 2}
    write_page([changed(data, curves=curves | repeated)], tmp_path / "repeated.html")
    page = open_page(tmp_path / "repeated.html")
    assert set(page.locator("#curve-controls option").all_text_contents()) == {"Worst class", "Learning rate"}
    page = open_page(tmp_path / "little.html")
    page.get_by_label("Also show").select_option(label="Learning rate")
    settle(page)
    assert titles(page, "#curve-charts") == ["Test accuracy", "Mean class age", "Learning rate"]


def test_the_number_of_oldest_samples_is_one_number(open_page: Open, tmp_path: Path) -> None:
    data = make_data(counts=[400, 300, 200, 100, 50, 20])
    write_page([data, changed(data, name="b", method="b")], tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    about = page.locator("#sample-about").inner_text()
    count = about.partition("all classes: ")[2].partition(" sample")[0]
    assert f"{data.name}, of 1,070 samples: {count} are listed as oldest" in page.locator("#about-body").inner_text()
    page.locator("#gallery-more").get_by_role("button", name="All").click()
    assert page.locator("#gallery li").count() == int(count)


def test_a_run_without_ages_has_no_hole_and_shows_what_differs(open_page: Open, tmp_path: Path) -> None:
    data = make_data(samples=False)
    rest = {name: values for name, values in data.run.over_time.items() if name != "age"} | {"weight": np.ones((12, 6))}
    write_page([changed(data, over_time=rest), make_data("b", samples=False)], tmp_path / "both.html")
    write_page([changed(data, over_time=rest)], tmp_path / "one.html")
    page = open_page(tmp_path / "one.html")
    assert page.locator("#class-charts svg").count() == 0
    assert page.locator("#pick-reading option:checked").inner_text() == "Test accuracy"
    assert "No ages were recorded" in page.locator("#advice-list").inner_text()
    page = open_page(tmp_path / "both.html")
    page.locator("#pick-run").select_option(label="b")
    expect(page.locator("#class-charts svg")).to_have_count(1)
    page.locator("#pick-run").select_option(label=data.name)
    expect(page.locator("#class-charts svg")).to_have_count(0)
    page.get_by_label("Class", exact=True).fill("class 2")
    page.get_by_label("Class", exact=True).press("Enter")
    page.get_by_label("Show b").uncheck()
    titles = page.locator("#class-curves .role-title-text")
    expect(titles).to_have_text(["Test accuracy", "Training accuracy"])  # weights that are all one say nothing
    assert "Weight" not in page.locator("#class-table thead").inner_text()


def test_a_page_of_streams_counts_steps(open_page: Open, tmp_path: Path) -> None:
    data = make_data(samples=False)
    stream = changed(data, settings=data.run.settings | {"scenario": "stream"})
    write_page([stream], tmp_path / "stream.html")
    page = open_page(tmp_path / "stream.html")
    head = page.locator("#run-table thead").inner_text()
    assert "Steps" in head
    assert "Mean of second half" in head
    for charts in ("#curve-charts", "#heat-charts"):
        assert set(page.locator(f"{charts} .role-axis-title text").all_text_contents()) == {"step"}
    page.locator("#heat-charts svg image").first.hover()
    assert re.search(r", step [67]\n", page.locator("#tip").inner_text())  # the pointer is where they meet
    write_page([stream, changed(data, name="b", method="b")], tmp_path / "both.html")
    head = open_page(tmp_path / "both.html").locator("#run-table thead").inner_text()
    assert "Epochs" in head
    assert "Mean at the end" in head


def test_an_age_history_gives_the_last_epoch_as_much_room_as_the_others(page: Page) -> None:
    path = page.locator("#gallery .spark path").first.get_attribute("d")
    assert path is not None
    assert path.endswith("H127.0")  # of 128
    places = [float(word.partition("V")[0]) for word in path.split("H")[1:]]
    assert np.diff([1.0, *places]) == pytest.approx(126 / 12, abs=0.11)


def test_a_record_of_the_last_epoch_alone_shows_its_classes_and_no_heatmap(open_page: Open, tmp_path: Path) -> None:
    whole = make_data(samples=False)
    last = {"smoothed_age": whole.run.by_class["age"], "test_accuracy": whole.run.by_class["test_accuracy"]}
    many = [changed(whole, name=f"run {k}", over_time={}, by_class=last, counts=None) for k in range(61)]
    write_page(many, tmp_path / "last.html")
    write_page(many[:60], tmp_path / "fewer.html")
    page = open_page(tmp_path / "last.html")
    assert page.locator("#heatmap").is_hidden()
    oldest = whole.run.classes[int(np.argmax(last["smoothed_age"]))]
    assert page.locator("#class-table tbody th").first.inner_text() == oldest
    assert page.locator("#class-table thead").inner_text().split("\t")[:2] == ["Class", "Smoothed age"]
    assert page.locator("#run-table tbody tr").count() == 12
    page.locator("#run-more").get_by_role("button", name="48 more").click()
    assert page.locator("#run-table tbody tr").count() == 60
    page.locator("#run-more").get_by_role("button", name="All").click()
    assert page.locator("#run-table tbody tr").count() == 61
    fewer = open_page(tmp_path / "fewer.html").locator("#run-more").get_by_role("button")
    assert fewer.all_inner_texts() == ["All"]  # 48 more are all


def test_the_baseline_is_shown_and_comes_first_whatever_its_place(open_page: Open, tmp_path: Path) -> None:
    data = make_data()
    runs = [changed(data, name=name, method=name, baseline=None, settings={}) for name in ("a", "b", "c", "d", "plain")]
    write_page(runs, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    assert page.locator("#curve-controls .key > span").all_inner_texts() == [" plain", " a", " b", " c"]


def test_colours_and_axes_are_labelled_without_exponents(open_page: Open, tmp_path: Path) -> None:
    data = make_data()
    age = data.run.over_time["age"]
    ages = age / age.max() * 9 + 1  # ticks 2, 4 ... 10, of which d3 rounds the last to one digit
    write_page([changed(data, over_time=data.run.over_time | {"age": ages})], tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    labels = page.locator("#heat-legend .role-legend-label text").all_text_contents()
    assert "10" in labels
    assert not [label for label in labels if "e" in label]
