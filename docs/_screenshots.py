"""Take the pictures of docs/how-to/report.md: digits by three methods, their page, in Chromium.

`AOL_CHROMIUM=$(.ci/chromium) .venv/bin/python docs/_screenshots.py`, after `make test-browser` has set things up.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from aol import cli

WORDS = "train --data digits --imbalance 50 --weighting none,cb,aol --seed 0-2 --epochs 40 --keep-samples"
HERE = Path(__file__).parent / "how-to"
# The file, the colours, the section it begins with, and its height in pixels.
PICTURES = (
    ("report-overview.webp", "light", "answer", 1380),
    ("report-samples.webp", "dark", "samples", 640),
)


def take(page: Page, name: str, first: str, height: int) -> None:
    """Save what lies below the beginning of a section."""
    page.evaluate(f"() => document.getElementById('{first}').scrollIntoView()")
    page.evaluate("() => document.querySelector('nav.bar').style.position = 'static'")
    top = page.evaluate(f"() => document.getElementById('{first}').getBoundingClientRect().top + scrollY")
    shot = page.screenshot(full_page=True, clip={"x": 0, "y": top, "width": 1180, "height": height})
    Image.open(io.BytesIO(shot)).convert("RGB").save(HERE / name, quality=80, method=6)


def main() -> None:
    """Train, write the page, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        assert cli.main([*WORDS.split(), "--out", f"{folder}/digits"]) == 0
        assert cli.main(["report", f"{folder}/digits"]) == 0
        browser = playwright.chromium.launch(executable_path=os.environ["AOL_CHROMIUM"], args=["--no-sandbox"])
        for name, colours, first, height in PICTURES:
            page = browser.new_page(viewport={"width": 1180, "height": 900}, color_scheme=colours)  # type: ignore[arg-type]
            page.goto(Path(f"{folder}/digits/report.html").as_uri())
            page.wait_for_selector("html[data-ready]")
            take(page, name, first, height)
        browser.close()


if __name__ == "__main__":
    main()
