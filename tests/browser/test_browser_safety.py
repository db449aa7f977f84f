"""Text from data is text; nothing leaves the file. That no request is made is checked after every test: conftest.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from aol.report.page import write_page
from tests.support.made_runs import PAYLOADS, changed, make_data
from tests.support.opened import Open, settle


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on which every text is an attempt to become something else."""
    runs = []
    for seed, name in enumerate(PAYLOADS[:3]):
        data = make_data(name, names=PAYLOADS, counts=[30 - seed] * len(PAYLOADS), seed=seed, epochs=8)
        runs.append(
            changed(
                data,
                folder=Path("/runs") / PAYLOADS[2].replace("/", "_"),
                settings={**dict(zip(PAYLOADS, PAYLOADS[::-1], strict=True)), "data": PAYLOADS[0]},
                versions=dict(zip(PAYLOADS, PAYLOADS, strict=True)),
                command=PAYLOADS[1],
            )
        )
    path = tmp_path_factory.mktemp("hostile") / "a '\"<b>&amp;#?.html"
    write_page(runs, path)
    return path


def stays_harmless(page: Page) -> None:
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("script").count() == 3
    assert page.locator("b, iframe, object, embed").count() == 0
    assert page.evaluate("() => [...document.images].every(each => each.src.startsWith('data:image/'))")
    names = "() => [...document.querySelectorAll('*')].flatMap(each => [...each.attributes]).map(each => each.name)"
    assert not any(name.startswith("on") for name in page.evaluate(names))


def test_markup_in_names_is_shown_and_never_run(open_page: Open, hostile: Path) -> None:
    page = open_page(hostile)
    stays_harmless(page)
    assert {row.locator("th").text_content() for row in page.locator("#class-table tbody tr").all()} == set(PAYLOADS)
    assert PAYLOADS[1] in page.locator(".command code").inner_text()
    assert PAYLOADS[0] in page.locator("#title").inner_text()


def test_a_hostile_class_can_be_chosen_pointed_at_and_reloaded(open_page: Open, hostile: Path) -> None:
    page = open_page(hostile)
    for place in range(len(PAYLOADS)):
        page.locator(f"[data-key=class-{place}]").click()
        settle(page)
        assert page.locator("#class-detail em").text_content() == PAYLOADS[place]
        page.locator("#heat-charts svg image").first.hover(position={"x": 20, "y": 5 + 20 * place})
        assert page.locator("#tip").is_visible()
        stays_harmless(page)
        if place in (1, 5):
            page.reload()
            page.wait_for_selector("html[data-ready]")
            assert page.locator("#class-detail em").text_content() == PAYLOADS[place]
            stays_harmless(page)


def test_every_part_stays_harmless_when_used(open_page: Open, hostile: Path) -> None:
    page = open_page(hostile)
    for option in page.locator("#pick-run option").all():
        page.locator("#pick-run").select_option(value=option.get_attribute("value"))
        page.get_by_label("include less clear cases").set_checked(True)
        settle(page)
        stays_harmless(page)
    page.locator("#find-class").fill("<img src=x onerror='window.hacked=8'>")
    page.locator("#pick-class").fill("<img src=x onerror='window.hacked=9'>")
    page.locator("#pick-class").press("Enter")
    stays_harmless(page)


def test_text_and_rows_of_samples_are_shown_as_text(open_page: Open, tmp_path: Path) -> None:
    data = make_data()
    assert data.samples is not None
    about = {row: PAYLOADS[0] if row % 2 else [[PAYLOADS[2], PAYLOADS[3]]] for row in range(len(data.samples))}
    told = replace(data.samples, about=about, picture=lambda _: None)
    write_page([changed(data, samples=told)], tmp_path / "text.html")
    page = open_page(tmp_path / "text.html")
    assert page.locator("#gallery blockquote.about").first.inner_text() == PAYLOADS[0]
    assert page.locator("#gallery dl.about dt").first.inner_text() == PAYLOADS[2]
    page.locator("#error-list .enlarge").first.click()
    expect(page.locator("#zoom .about")).to_be_visible()
    stays_harmless(page)


def test_the_policy_stops_what_the_code_would_let_through(browser: Browser, page_file: Path) -> None:
    """A second wall: scripts, handlers and requests put in by force do nothing."""
    page = browser.new_page()  # not watched: the console tells what is stopped
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-ready]")
    sent: list[str] = []
    page.on("requestfinished", lambda asked: sent.append(asked.url))
    page.evaluate("""() => {
        window.stopped = [];
        document.addEventListener('securitypolicyviolation', each => window.stopped.push(each.effectiveDirective));
        const box = document.createElement('div');
        box.innerHTML = '<img src="x:y" onerror="window.hacked=1">';
        document.body.append(box);
        const script = document.createElement('script');
        script.textContent = 'window.hacked=2';
        document.body.append(script);
        fetch('https://example.org/').catch(() => {});
        try { setTimeout('window.hacked=3', 0); } catch {}
    }""")
    settle(page)
    hacked = page.evaluate("() => window.hacked")
    blocked = page.evaluate("() => window.stopped")
    page.close()
    assert hacked is None
    assert sent == []
    assert {"img-src", "script-src-elem", "connect-src"} <= set(blocked)


def test_names_that_every_object_of_javascript_has_are_names_like_others(open_page: Open, tmp_path: Path) -> None:
    names = ["constructor", "toString", "__proto__", "valueOf"]
    data = make_data("constructor, seed 0", names=names, counts=[40, 30, 20, 10])
    data.run.curves.update(dict.fromkeys(names, data.run.curves["test_accuracy"]))
    data.run.settings.update(dict.fromkeys(names, "1"))
    write_page([data, make_data("plain, seed 0")], tmp_path / "names.html")
    page = open_page(tmp_path / "names.html")
    for name in names:
        page.get_by_label("Also show").select_option(value=name)
        settle(page)
        title = page.locator("#curve-charts .chart").nth(2).locator(".role-title-text").text_content() or ""
        assert title.strip("\u200b").replace(" ", "") == name.replace("_", "")
    labels = page.locator("#matrix .role-axis-label text").all_text_contents()
    assert {label.strip("\u200b") for label in labels} == set(names)


def test_a_page_without_the_browser_s_storage_works_too(open_page: Open, page_file: Path) -> None:
    page = open_page(page_file)
    page.add_init_script("Object.defineProperty(window, 'sessionStorage', { get() { throw new Error('no'); } })")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#class-table tbody tr").count() == 6
