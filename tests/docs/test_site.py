"""The site builds without a warning, needs nothing from the network, and fits a laptop and a phone, light and dark."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from support.docs.site_hooks import ROOT
from support.report_pages import OVERLAPS

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
LAPTOP, PHONE = (1280, 800), (390, 844)
FROM_ELSEWHERE = re.compile(r"""(?:<script[^>]+src|<link[^>]+href|<img[^>]+src)=["'](?:https?:)?//""")
# How far anything but what scrolls by itself reaches beyond the right edge of the window, and what that is.
BEYOND = """() => {
    const scrolls = (element) => {
        for (let at = element; at && at !== document.body; at = at.parentElement) {
            const style = getComputedStyle(at);
            if (style.overflowX !== 'visible' || style.position === 'fixed') return true;
        }
        return false;
    };
    const width = document.documentElement.clientWidth;
    return [...document.querySelectorAll('.md-content *, .md-header *')]
        .filter((element) => element.getBoundingClientRect().right > width + 1 && !scrolls(element))
        .map((element) => element.tagName + ' ' + element.textContent.trim().slice(0, 60));
}"""
# What must not lie over each other, of what stands in the page itself or at its top.
# No inline parts: the box of one that goes over several lines holds its neighbours.
BLOCKS = ("h1", "h2", "h3", "p", "li", "pre", "th", "td", "summary", "img", "dt")
LABELS = (
    *(f".md-content {part}" for part in BLOCKS),
    ".md-header__title",
    ".md-header__button",
    ".md-search__form",
    ".md-footer__link",
)
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # what mkdocs says about its own future
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr, built.stderr
    return made


@pytest.mark.timeout(400)
def test_pages_need_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    assert [page.name for page in pages if FROM_ELSEWHERE.search(page.read_text(encoding="utf-8"))] == []


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a process serves the site; threads of a server here would outlive single tests."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(site)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        while server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
        yield f"http://127.0.0.1:{port}"
        server.terminate()


@pytest.fixture
def browser() -> Iterator[Browser]:
    """One for each test: over HTTP it starts processes as it likes."""
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


def complaints_of(page: Page) -> list[str]:
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(f"error: {error}"))
    page.on("request", lambda request: "127.0.0.1" in request.url or found.append(f"request: {request.url}"))
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_nothing_is_wider_than_the_window(size: tuple[int, int], site: Path, address: str, browser: Browser) -> None:
    """Each page is loaded once, and then looked at light and dark."""
    with browser.new_context(viewport={"width": size[0], "height": size[1]}) as context:
        page = context.new_page()
        complaints = complaints_of(page)
        wide = {}
        for name in sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html")):
            page.goto(f"{address}/{name}", wait_until="load")
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  one of these
                if page.evaluate(SIDEWAYS) > 0 or page.evaluate(BEYOND):
                    wide[name, scheme] = page.evaluate(BEYOND)
        assert wide == {}
        assert complaints == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_no_label_lies_over_another(size: tuple[int, int], site: Path, address: str, browser: Browser) -> None:
    with browser.new_context(viewport={"width": size[0], "height": size[1]}) as context:
        page = context.new_page()
        found = {}
        for name in sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html")):
            page.goto(f"{address}/{name}", wait_until="load")
            if overlaps := page.evaluate(OVERLAPS, ", ".join(LABELS)):
                found[name] = overlaps
        assert found == {}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_message_is_found_by_searching(address: str, browser: Browser) -> None:
    with browser.new_context(viewport={"width": LAPTOP[0], "height": LAPTOP[1]}) as context:
        page = context.new_page()
        page.goto(f"{address}/index.html")
        page.locator(".md-search__input").click()
        page.locator(".md-search__input").fill("neither a safetensors file nor a torch file")
        page.wait_for_selector(
            ".md-search-result__link[href*='troubleshooting/checkpoints']", state="attached", timeout=60_000
        )
