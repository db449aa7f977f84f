"""The documentation, opened from its folder as `make docs` leaves it, is searched and asks nothing of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300)
    return folder


@pytest.mark.parametrize("start", ["index.html", "how-to/report.html"])
def test_a_site_opened_from_its_folder_is_searched_without_a_server(browser: Browser, site: Path, start: str) -> None:
    page, troubles = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "request", lambda asked: troubles.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None
    )
    page.goto((site / start).as_uri())
    page.locator(".md-search__input").click()
    page.keyboard.type("reservoir")
    page.locator(".md-search-result__link").first.wait_for(timeout=20_000)
    page.locator(".md-search-result__link[href*='streams.html#aol.Reservoir']").first.click()
    page.wait_for_url("**/reference/streams.html*")
    page.close()
    assert troubles == []


@pytest.mark.parametrize("name", ["results.html", "results-margins.html"])
def test_results_fit_on_three_screens_and_unfold(browser: Browser, site: Path, name: str) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto((site / name).as_uri())
    assert page.evaluate("document.documentElement.scrollHeight") <= 3 * 900
    folded = page.locator("details:not([open]) table")
    assert folded.count() > 5
    assert not folded.last.is_visible()
    page.locator("summary").last.click()
    assert page.locator("details[open] table").last.is_visible()
    page.close()
