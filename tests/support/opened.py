"""What every test in a browser needs: how a page is opened, and when it is drawn."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page

Open = Callable[..., Page]


def settle(page: Page) -> None:
    """Wait until charts that are being drawn are there."""
    page.evaluate("() => new Promise(done => setTimeout(() => requestAnimationFrame(() => done()), 120))")
