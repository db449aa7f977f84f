"""A real browser on pages that were just written. Run by `make test-browser`, which says where Chromium is.

Every page that a test opens is watched: an error on its console, or a request that leaves the file, fails the test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from aol.report.page import write_page
from aol.report.run_data import RunData
from tests.support.made_runs import make_data
from tests.support.opened import Open, settle


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=os.environ["AOL_CHROMIUM"], args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a page and wait until it is drawn; keywords are the browser's (`color_scheme`, `viewport` ...)."""
    troubles: list[str] = []
    pages: list[Page] = []

    def opened(path: Path, hash: str = "", **how: object) -> Page:  # noqa: A002
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | how))  # type: ignore[arg-type]
        page = context.new_page()
        pages.append(page)
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("console", lambda said: troubles.append(f"console: {said.text}") if said.type != "log" else None)
        page.on("request", lambda asked: _watch(asked.url, path, troubles))
        page.on("popup", lambda _: troubles.append("a window was opened"))
        page.goto(path.as_uri() + hash)
        page.wait_for_selector("html[data-ready]")
        settle(page)
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert troubles == []


def _watch(url: str, path: Path, troubles: list[str]) -> None:
    if not url.startswith(("data:", "about:")) and url.partition("#")[0] != path.as_uri():
        troubles.append(f"request: {url}")


@pytest.fixture(scope="session")
def runs() -> list[RunData]:
    return [make_data("none, seed 0", seed=0), make_data("aol ρ=0.5 class, seed 0", seed=1)]


@pytest.fixture(scope="session")
def page_file(runs: list[RunData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(runs, path)
    return path


@pytest.fixture
def page(open_page: Open, page_file: Path) -> Page:
    return open_page(page_file)
