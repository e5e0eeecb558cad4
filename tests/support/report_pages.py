"""Pages in a real browser. Whatever a page logs, throws or asks the network for fails the test that looks at it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LAPTOP, PHONE = (1280, 800), (390, 844)
Opener = Callable[..., Page]
# Given selectors of labels: pairs of them that lie over each other. A label's own parts are not compared.
OVERLAPS = """(labels) => {
  const boxes = [];
  for (const element of document.querySelectorAll(labels)) {
    if (!element.checkVisibility()) continue; // in something that is folded
    let { left, right, top, bottom } = element.getBoundingClientRect();
    for (let frame = element.closest('.scroll, .md-typeset__table, pre'); frame; frame = null) {
      const edge = frame.getBoundingClientRect(); // what is scrolled out of sight lies over nothing
      [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
      [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
    }
    if (right - left > 1 && bottom - top > 1) boxes.push({ element, left, right, top, bottom });
  }
  const found = [];
  boxes.forEach((a, place) => {
    for (const b of boxes.slice(place + 1)) {
      if (a.element.contains(b.element) || b.element.contains(a.element)) continue;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1.5 && down > 2.5) found.push(`${a.element.textContent.trim()} | ${b.element.textContent.trim()}`);
    }
  });
  return found;
}"""


@contextlib.contextmanager
def real_browser() -> Iterator[Browser]:
    """Start Chromium once for many tests: starting it takes longer than a test."""
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        browser.new_context()  # keeps the browser's own processes up between tests
        yield browser
        browser.close()


@contextlib.contextmanager
def page_opener(browser: Browser, folder: Path) -> Iterator[Opener]:
    """Gives a function that opens a page of `folder`."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def opened(name: str, size: tuple[int, int] = LAPTOP, scheme: str = "light", folder: Path = folder) -> Page:
        view = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=view, color_scheme=scheme)  # type: ignore[arg-type]  light or dark
        contexts.append(context)
        page = context.new_page()
        address = (folder / name).as_uri()

        def asked(request: Request) -> None:
            if request.url != address and not request.url.startswith("blob:"):  # a file that the page makes itself
                complaints.append(f"request: {request.url}")

        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", asked)
        page.goto(address)
        page.wait_for_selector("#value-0 .curve")
        return page

    try:
        yield opened
    finally:
        for context in contexts:
            context.close()
    assert complaints == []


def readout(page: Page, chart: str = "value-0") -> str:
    return " ".join(page.locator(f"#{chart} .readout").inner_text().split())
