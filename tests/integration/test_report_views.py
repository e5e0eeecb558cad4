"""The report in a real browser: axes, zoom, files of numbers, screens of all sizes, a page that follows its job."""

from __future__ import annotations

import csv
import io
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from shoal.disk.last_report import default_settings
from shoal.watch.report.page import write_report
from support.launcher import PATIENCE, SHOAL
from support.records import eventful, faulty
from support.report_pages import LAPTOP, OVERLAPS, PHONE, Opener, page_opener, readout, real_browser

EXAMPLES = Path(__file__).parents[2] / "examples"
# Boxes of labels that stand side by side must not lie over each other. A label's own parts are not compared.
LABELS = (
    ".plot text", "figcaption > :not(:empty)", ".readout > span", ".figures > div", ".tools label", "nav > *", "h1",
    "h2", ".kinds > span", ".bars > *", ".files dt", ".files dd", "th", "td", ".sideways", ".note", ".hint",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with real_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reports")
    first = eventful(made / "first", arguments=("--epochs", "5", "--learning-rate", "0.001"))
    second = eventful(made / "second", steps=500, pace=0.5)
    write_report([first], made / "one.html", default_settings())
    write_report([first, second], made / "two.html", default_settings())
    write_report([faulty(made / "faulty")], made / "faulty.html", default_settings())
    return made


@pytest.fixture
def open_page(browser: Browser, folder: Path) -> Iterator[Opener]:
    with page_opener(browser, folder) as opener:
        yield opener


def labels_below(page: Page, chart: str = "value-0") -> list[str]:
    return page.locator(
        f"#{chart} .plot text[text-anchor=middle], #{chart} .plot text[text-anchor=start]"
    ).all_text_contents()


def drag(page: Page, start: float, end: float, chart: str = "value-0") -> None:
    box = page.locator(f"#{chart} .plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + start * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + (start + end) / 2 * box["width"], box["y"] + 70)
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 80)
    page.mouse.up()


def test_curves_over_steps_samples_epochs_and_time(open_page: Opener) -> None:
    page = open_page("one.html")
    assert readout(page).startswith("step 600 3:14 ")
    assert labels_below(page)[-1] == "550"
    page.check("input[value=samples]")
    assert readout(page).startswith("step 600 76,800 samples ")
    assert "60k" in labels_below(page)
    page.check("input[value=epoch]")
    assert readout(page).startswith("step 600 epoch 6 ")
    assert "4.0" in labels_below(page)
    page.check("input[value=time]")
    assert [label for label in labels_below(page) if re.fullmatch(r"\d:\d\d", label)]
    several = open_page("two.html")
    assert several.locator("input[value=samples]").is_checked(), "steps of two runs may be of different sizes"
    assert "76,800 samples" in readout(several)


def test_drag_zooms_all_charts_and_a_double_click_shows_all_again(open_page: Opener) -> None:
    page = open_page("one.html")
    whole = labels_below(page)
    drag(page, 0.5, 0.7)
    inside = [int(label) for label in labels_below(page)]
    assert inside == labels_of_range(inside)
    assert 280 <= inside[0] < inside[-1] <= 430
    assert labels_below(page, "speed") == labels_below(page), "all charts show the same steps"
    assert int(readout(page, "value-3").split()[1]) <= 430, "the last value in sight"
    page.focus("#value-0 .plot")
    page.keyboard.press("Home")
    assert 280 <= int(readout(page).split()[1]) <= 310
    page.dblclick("#value-0 .plot")
    assert labels_below(page) == whole
    page.focus("#value-0 .plot")
    for key in ("Home", "+", "+"):
        page.keyboard.press(key)
    assert int(labels_below(page)[-1]) <= 100
    page.click("#value-0 .unzoom")
    assert labels_below(page) == whole
    assert not page.locator(".unzoom:visible").count()
    drag(page, 0.5, 0.502)
    assert labels_below(page) == whole, "a click is no zoom"


def labels_of_range(labels: list[int]) -> list[int]:
    return list(range(labels[0], labels[-1] + 1, labels[1] - labels[0]))


def test_numbers_of_a_chart_as_a_file(open_page: Opener) -> None:
    page = open_page("two.html")
    page.click("button[data-run='1']")
    drag(page, 0.5, 0.7)
    with page.expect_download() as waiting:
        page.click("#value-1 .csv")
    assert waiting.value.suggested_filename == "accuracy.csv"
    rows = list(csv.DictReader(io.StringIO(waiting.value.path().read_text(encoding="utf-8"))))
    assert [row["step"] for row in rows] == ["100", "200", "300", "400", "500", "600"], "all of the run in sight"
    assert {(row["run"], row["curve"]) for row in rows} == {("first", "held out")}
    assert [row["samples"] for row in rows] == [str(128 * step) for step in range(100, 700, 100)]
    assert [float(row["epoch"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert float(rows[-1]["value"]) == pytest.approx(0.99394, abs=1e-4)
    assert float(rows[0]["seconds"]) < float(rows[-1]["seconds"])
    single = open_page("one.html")
    with single.expect_download() as waiting:
        single.click("#memory .csv")
    text = waiting.value.path().read_text(encoding="utf-8")
    assert {row["curve"] for row in csv.DictReader(io.StringIO(text))} == {"worker 0", "worker 1", "worker 2"}


@pytest.mark.parametrize(
    "name", ["one.html", *(pytest.param(name, marks=pytest.mark.long) for name in ("two.html", "faulty.html"))]
)
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
@pytest.mark.parametrize("size", [PHONE, LAPTOP])
def test_nothing_overflows_or_overlaps(open_page: Opener, name: str, size: tuple[int, int], scheme: str) -> None:
    page = open_page(name, size, scheme)
    for axis in ("time", "epoch", "samples", "step"):
        if page.locator(f"input[value={axis}]").count():
            page.check(f"input[value={axis}]")
            assert page.evaluate(OVERLAPS, ", ".join(LABELS)) == [], axis
    for summary in page.locator("summary:visible").all():
        summary.click()
    page.locator("#value-0 tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.evaluate(OVERLAPS, ", ".join(LABELS)) == []


def test_tables_that_are_wider_than_a_phone_scroll_and_say_so(open_page: Opener) -> None:
    page = open_page("one.html", PHONE)
    box = page.locator("#values .scroll")
    hint = page.locator("#values .sideways")
    expect(hint).to_be_visible()
    assert box.evaluate("e => e.scrollWidth > e.clientWidth")
    box.evaluate("e => e.scrollTo(10000, 0)")
    assert box.evaluate("e => e.scrollLeft") > 50
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    page.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
    expect(hint).to_be_hidden()


def test_a_live_page_keeps_what_was_chosen_when_it_loads_itself(tmp_path: Path, open_page: Opener) -> None:
    run_dir = eventful(tmp_path / "run")
    write_report([run_dir], tmp_path / "r.html", refresh=1.0)
    page = open_page("r.html", folder=tmp_path)
    page.check("input[value=samples]")
    page.check("#smooth")
    page.click("#theme")
    drag(page, 0.5, 0.7)
    chosen = labels_below(page)
    page.click("#configuration summary")
    write_report([run_dir], tmp_path / "r.html")
    expect(page.locator("html:not([data-live]) #value-0 .curve").first).to_be_attached(timeout=PATIENCE * 1000)
    assert page.locator("input[value=samples]").is_checked()
    assert page.locator("#smooth").is_checked()
    assert page.inner_text("#theme") == "Theme: dark"
    assert labels_below(page) == chosen
    assert page.locator("#configuration details").get_attribute("open") is not None


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_live_page_follows_a_real_job_until_it_ends(tmp_path: Path, open_page: Opener) -> None:
    script = ("--run-dir", "job", str(EXAMPLES / "digits.py"), "--epochs", "500")
    job = subprocess.Popen(
        (*SHOAL, "run", "-n", "2", "--progress", "plain", *script), cwd=tmp_path, stdout=-3, stderr=-3
    )
    live = None
    try:
        _await(lambda: (tmp_path / "job" / "metrics.jsonl").is_file() and _steps(tmp_path) > 20)
        live = subprocess.Popen(
            (*SHOAL, "report", "job", "--live"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert live.stdout is not None
        assert live.stdout.readline() == "job/report.html\n"
        page = open_page("report.html", folder=tmp_path / "job")
        first = _step_shown(page)
        page.check("input[value=epoch]")
        _await(lambda: _step_shown(page) > first)
        assert page.locator("input[value=epoch]").is_checked()
        job.send_signal(signal.SIGINT)
        job.wait(2 * PATIENCE)
        assert live.wait(PATIENCE) == 0
        assert "the job has ended" in live.stdout.read()
        expect(page.locator(".state")).to_have_text("interrupted", timeout=PATIENCE * 1000)
        assert page.locator("input[value=epoch]").is_checked()
        assert page.locator("#processor path.curve").count() == 2
        assert "torch" in page.inner_text("#environment")
    finally:
        for process in (job, live):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE)
        if live is not None and live.stdout is not None:
            live.stdout.close()


def _step_shown(page: Page) -> int:
    return int(readout(page).split()[1].replace(",", ""))


def _steps(folder: Path) -> int:
    lines = (folder / "job" / "metrics.jsonl").read_bytes().splitlines()
    return int(msgspec.json.decode(lines[-1])["step"]) if lines else 0


def _await(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 2 * PATIENCE
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)
