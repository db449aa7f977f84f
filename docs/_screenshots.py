"""Take the pictures of the README and of docs/how-to/report.md: digits by three methods, their page, in Chromium.

`AOL_CHROMIUM=$(.ci/chromium) .venv-browser/bin/python docs/_screenshots.py`, after `make test-browser` has set up both.
"""

from __future__ import annotations

import base64
import io
import os
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from aol import cli

TAIL = "train --data digits --imbalance 50 --margin none,counts,counts-seen --seed 0-4 --epochs 40 --keep-samples"
NOISE = "train --data digits --imbalance none --noise 0.05 --epochs 20 --keep-samples"
HERE = Path(__file__).parent
# The file, the runs it is of, the colours, the section it begins with, and its height in pixels.
PICTURES = (
    ("how-to/report-overview.webp", "tail", "light", "answer", 1560),
    ("how-to/report-samples.webp", "noise", "dark", "errors", 780),
)
HERO = """<body style="margin:0;background:#fff;font:21px system-ui,sans-serif;color:#1b1f24">
<div style="display:flex;gap:36px;padding:24px;width:1552px">
<div style="width:500px">{plain}{adjusted}</div><div style="width:1016px">{report}</div></div>"""
FIGURE = """<figure style="margin:0 0 10px"><figcaption style="padding:0 0 12px 2px"><b>{bold}</b>{rest}</figcaption>
<img src="data:image/png;base64,{data}" style="width:100%;{style}"></figure>"""
FRAME = "border:1px solid #c9d1d9;border-radius:10px;box-shadow:0 4px 18px #0002"


def shot(page: Page, first: str, height: int) -> bytes:
    """Return a picture of what lies below the beginning of a section."""
    page.evaluate(f"() => document.getElementById('{first}').scrollIntoView()")
    page.evaluate("() => document.querySelector('nav.bar').style.position = 'static'")
    top = page.evaluate(f"() => document.getElementById('{first}').getBoundingClientRect().top + scrollY")
    assert page.viewport_size is not None
    return page.screenshot(
        full_page=True, clip={"x": 0, "y": top - 8, "width": page.viewport_size["width"], "height": height}
    )


def opened(browser: Browser, report: Path, colours: str, width: int = 1440, scale: float = 1) -> Page:
    """Return the report in a new tab, drawn."""
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme=colours,  # type: ignore[arg-type]
        device_scale_factor=scale,
    )
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]")
    return page


def save(png: bytes, name: str) -> None:
    """Save a picture as WebP."""
    Image.open(io.BytesIO(png)).convert("RGB").save(HERE / name, quality=80, method=6)


def hero(browser: Browser, figures: Path, report: Path) -> bytes:
    """Return the heatmaps of two methods beside the top of the report."""

    def figure(png: bytes, bold: str, rest: str = "", style: str = "") -> str:
        return FIGURE.format(bold=bold, rest=rest, data=base64.b64encode(png).decode(), style=style)

    page = browser.new_page(viewport={"width": 1600, "height": 100})
    page.set_content(
        HERO.format(
            plain=figure((figures / "heatmap-none.png").read_bytes(), "Age", " of each class, plain training"),
            adjusted=figure(
                (figures / "heatmap-logit-adjustment-by-labels-seen-tau-1.png").read_bytes(),
                "Age",
                " with logit adjustment",
            ),
            report=figure(shot(opened(browser, report, "light", 1140, 2), "answer", 744), "aol report", style=FRAME),
        )
    )
    return page.screenshot(full_page=True)


def main() -> None:
    """Train, write the page, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for name, words in (("tail", TAIL), ("noise", NOISE)):
            assert cli.main([*words.split(), "--json", "--out", f"{folder}/{name}"]) == 0
            assert cli.main(["report", f"{folder}/{name}"]) == 0
        assert cli.main(["report", f"{folder}/tail", "--figures", f"{folder}/figures"]) == 0
        browser = playwright.chromium.launch(executable_path=os.environ["AOL_CHROMIUM"], args=["--no-sandbox"])
        for file, runs, colours, first, height in PICTURES:
            save(shot(opened(browser, Path(f"{folder}/{runs}/report.html"), colours), first, height), file)
        save(hero(browser, Path(f"{folder}/figures"), Path(f"{folder}/tail/report.html")), "hero.webp")
        browser.close()


if __name__ == "__main__":
    main()
