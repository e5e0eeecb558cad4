"""The report in a real browser: that it draws what it should, by keyboard too, and asks nothing of the network."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from shoal.watch.report.page import write_report
from support.launcher import PATIENCE, shoal
from support.records import Job, eventful, faulty, job_started
from support.report_pages import LAPTOP, PHONE, Opener, page_opener, readout, real_browser

EXAMPLES = Path(__file__).parents[2] / "examples"
EVIL = "</script><img src=x onerror=document.title='broken'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with real_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reports")
    first = eventful(made / "first", arguments=("--epochs", "5", EVIL))
    second = eventful(made / "second", steps=500, pace=0.5)
    third = eventful(made / "third", steps=700, pace=2.0)
    write_report([first], made / "one.html")
    write_report([faulty(made / "faulty")], made / "faulty.html")
    write_report([first, second, third], made / "three.html")
    return made


@pytest.fixture
def open_page(browser: Browser, folder: Path) -> Iterator[Opener]:
    with page_opener(browser, folder) as opener:
        yield opener


def test_every_chart_has_its_curves(open_page: Opener) -> None:
    page = open_page("one.html")
    titles = page.locator("figcaption .name").all_inner_texts()
    use = ["processor cores in use", "memory in use, GB"]
    assert titles == ["loss", "accuracy", "gradient norm", "learning rate", "samples per second", *use]
    counts = [figure.locator("path.curve").count() for figure in page.locator("figure").all()]
    assert counts == [2, 1, 1, 1, 1, 3, 3], "a curve for each worker that reported"
    assert page.locator("#value-1 .dot").count() == 6, "an evaluation every 100 of 600 steps"
    assert page.locator("#value-0 .mark").count() == 4, "a death, two later generations and a resume"
    assert not page.locator("text=NaN").count()


def test_points_lie_where_their_values_are(tmp_path: Path, open_page: Opener) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for step, value in ((1, 0.0), (2, 10.0), (3, 5.0), (4, None), (5, 2.5)):
        job.step(step, {"loss": value})
    write_report([job.write()], tmp_path / "r.html")
    page = open_page("r.html", folder=tmp_path)
    path = page.locator("#value-0 path.curve").get_attribute("d") or ""
    assert path.count("M") == 2, "a value that is not finite leaves a gap"
    points = [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", path)]
    (x1, y1), (x2, y2), (x3, y3), (x5, y5) = points
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert x5 - x3 == pytest.approx(2 * (x2 - x1), abs=0.3)
    assert y1 - y3 == pytest.approx((y1 - y2) / 2, abs=0.2)
    assert y1 - y5 == pytest.approx((y1 - y2) / 4, abs=0.2)
    assert "1 value was not finite" in page.inner_text("#value-0 .note")
    page.focus("#value-0 .plot")
    page.keyboard.press("ArrowLeft")
    assert readout(page).endswith("loss not finite")


def test_arrow_keys_read_a_curve(tmp_path: Path, open_page: Opener) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for step in range(1, 201):
        job.step(step, {"loss": step / 8, "norm": 2.0 * step})
    write_report([job.write()], tmp_path / "r.html")
    page = open_page("r.html", folder=tmp_path)
    assert readout(page) == "step 200 0:50 loss 25", "the last value stands there from the start"
    page.focus("#value-0 .plot")
    for key, expected in (
        ("ArrowLeft", "step 199 0:50 loss 24.875"),
        ("Home", "step 1 0.25 s loss 0.125"),
        ("ArrowRight", "step 2 0.5 s loss 0.25"),
        ("PageDown", "step 22 5.5 s loss 2.75"),
        ("End", "step 200 0:50 loss 25"),
        ("ArrowRight", "step 200 0:50 loss 25"),
    ):
        page.keyboard.press(key)
        assert readout(page) == expected
    assert page.locator("#value-0 .cursor").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#value-0 .cursor").count() == 0
    box = page.locator("#value-1 .plot").bounding_box()
    assert box is not None
    page.hover("#value-1 .plot", position={"x": box["width"] / 2, "y": 50})
    near = re.match(r"step (\d+) ", readout(page, "value-1"))
    assert near is not None
    assert 90 < int(near[1]) < 115
    assert readout(page, "value-1").endswith(f"norm {2 * int(near[1])}")


def test_up_and_down_change_the_curve_that_is_read(open_page: Opener) -> None:
    page = open_page("one.html")
    page.focus("#value-0 .plot")
    page.keyboard.press("Home")
    assert readout(page).startswith("step 1 ")
    page.keyboard.press("ArrowDown")
    assert readout(page).startswith("step 100 "), "the first held-out point"
    page.keyboard.press("ArrowRight")
    assert readout(page).startswith("step 200 ")


def test_controls_work_by_keyboard_alone(open_page: Opener) -> None:
    page = open_page("one.html")
    curve = page.locator("#value-0 path.curve").first
    over_steps = curve.get_attribute("d")
    reached: list[str] = []
    for _ in range(90):
        page.keyboard.press("Tab")
        seen = page.evaluate(
            "() => { const e = document.activeElement; const s = getComputedStyle(e);"
            " return [e.id || e.value || e.className || e.getAttribute('href') || e.tagName, s.outlineStyle]; }"
        )
        if seen[0] == "BODY":  # once round
            break
        assert seen[1] != "none", f"{seen[0]} shows no focus"
        reached.append(seen[0])
        if seen[0] == "step":
            page.keyboard.press("ArrowLeft")  # from the first to the last
            assert page.locator("input[value=time]").is_checked()
        if seen[0] == "log":
            page.keyboard.press("Space")
            assert page.locator("#log").is_checked()
    for name in ("theme", "#curves", "step", "log", "smooth", "plot", "job", "checkpoints", "problems", "events"):
        assert name in reached
    assert page.locator("#value-0 text", has_text="time").count() == 1
    assert curve.get_attribute("d") != over_steps


def test_smoothing_keeps_the_measured_curve_in_sight(open_page: Opener) -> None:
    page = open_page("one.html")
    page.check("#smooth")
    assert page.locator("#value-0 path.faint").count() == 1
    assert page.locator("#value-1 path.faint").count() == 0, "six points are not smoothed"


def test_chart_has_a_table_and_a_description(open_page: Opener) -> None:
    page = open_page("one.html")
    label = page.locator("#value-1 .plot").get_attribute("aria-label") or ""
    assert re.match(r"accuracy over steps\. held out: from 0\.6\d+ to 0\.9\d+, between .* Arrow keys", label)
    page.focus("#value-1 summary")
    page.keyboard.press("Enter")
    expect(page.locator("#value-1 tbody tr")).to_have_count(6)
    assert page.locator("#value-1 tbody tr").first.inner_text().split()[0] == "100"


def test_filters_of_the_timeline(open_page: Opener) -> None:
    page = open_page("one.html")
    shown = page.locator(".events li:visible")
    everything = shown.count()
    page.focus(".timeline input[value=checkpoints]")
    page.keyboard.press("Space")
    assert shown.count() == everything - 10
    page.check(".timeline input[value=problems]")
    assert sorted(shown.locator(".category").all_inner_texts()) == ["advice", "members", "void steps"]
    page.check(".timeline input[value=checkpoints]")
    assert shown.count() == 5


@pytest.mark.parametrize("name", ["one.html", pytest.param("three.html", marks=pytest.mark.long)])
def test_dark_and_light(open_page: Opener, name: str) -> None:
    def lightness(page: Page) -> tuple[float, float]:
        found = page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        ground, ink = ([int(part) for part in re.findall(r"\d+", colour)[:3]] for colour in found)
        return sum(ground) / 3, sum(ink) / 3

    def curve_colour(page: Page) -> str:
        return str(page.locator("#value-0 path.curve").first.evaluate("e => getComputedStyle(e).stroke"))

    light, dark = open_page(name), open_page(name, scheme="dark")
    assert lightness(light)[0] > 240
    assert lightness(light)[1] < 60
    assert lightness(dark)[0] < 40
    assert lightness(dark)[1] > 200
    assert curve_colour(light) != curve_colour(dark)
    for page, expected in ((light, "Theme: dark"), (light, "Theme: light"), (light, "Theme: system")):
        page.click("#theme")
        assert page.inner_text("#theme") == expected
        assert (lightness(page)[0] < 40) is (expected == "Theme: dark")


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.long) for name in ("one.html", "three.html")), "faulty.html"]
)
@pytest.mark.parametrize("size", [PHONE, pytest.param(LAPTOP, marks=pytest.mark.long)])
def test_page_never_scrolls_sideways(open_page: Opener, name: str, size: tuple[int, int]) -> None:
    page = open_page(name, size)
    for summary in page.locator("summary:visible").all():
        summary.click()
    page.locator("#value-0 tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    page.set_viewport_size({"width": 320, "height": 600})
    page.wait_for_function("document.querySelector('#value-0 .plot').clientWidth < 320")
    assert page.evaluate("document.documentElement.scrollWidth") == 320


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, pytest.param(LAPTOP, marks=pytest.mark.long)])
def test_what_went_wrong_can_be_read_on_any_screen(open_page: Opener, size: tuple[int, int], scheme: str) -> None:
    page = open_page("faulty.html", size, scheme)
    rows = page.locator(".incidents tbody tr")
    assert rows.count() == 5
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    kill = " ".join(rows.first.inner_text().split())
    assert kill.startswith("0:12 step 41 ! on purpose: kill worker 2 (kill worker every 15s)")
    assert "3 workers go on" in kill
    assert page.locator(".lane").count() == 9
    first, last = page.locator(".lane").first.bounding_box(), page.locator(".lane").last.bounding_box()
    assert first is not None
    assert last is not None
    assert first["x"] == last["x"]
    assert first["width"] > 150
    table = page.locator(".incidents").bounding_box()
    assert table is not None
    assert table["width"] <= size[0], "nothing of it is out of sight"
    ink = page.locator(".lane line.problem").first.evaluate("e => getComputedStyle(e).stroke")
    ground = page.locator(".lane").first.evaluate("e => getComputedStyle(e).backgroundColor")
    contrast = [sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3 for colour in (ink, ground)]
    assert abs(contrast[0] - contrast[1]) > 80


def test_faults_and_stretches_without_progress_are_marked_in_the_curves(open_page: Opener) -> None:
    page = open_page("faulty.html")
    assert page.locator("#value-0 .mark.problem").count() == 7
    assert page.locator("#value-0 .mark:not(.problem)").count() == 4, "later generations"
    assert page.locator("#value-0 .pause").count() == 0, "over steps they have no width"
    page.check("input[value=time]")
    widths = page.locator("#value-0 .pause").evaluate_all("all => all.map(e => Number(e.getAttribute('width')))")
    assert len(widths) == 4
    assert widths[3] > 5 * widths[0] > 0
    assert "no step for 8.2 s" in page.locator("#value-0 .pause title").all_text_contents()


def test_runs_over_each_other_can_be_hidden(open_page: Opener) -> None:
    page = open_page("three.html")
    assert page.locator("#value-0 path.curve").count() == 6
    dashes = page.locator("#speed path.curve").evaluate_all("all => all.map(e => e.getAttribute('stroke-dasharray'))")
    colours = page.locator("#speed path.curve").evaluate_all("all => all.map(e => getComputedStyle(e).stroke)")
    assert len(set(dashes)) == 3, "told apart without colours too"
    assert len(set(colours)) == 3
    button = page.locator("button[data-run='1']")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert page.locator("#value-0 path.curve").count() == 4
    assert "second" not in readout(page)
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator("#value-0 path.curve").count() == 6
    assert "second" in readout(page)
    for run in range(3):
        page.click(f"button[data-run='{run}']")
    assert page.locator("path.curve").count() == 0


def test_pause_before_a_resume_is_not_in_the_time(open_page: Opener) -> None:
    page = open_page("one.html")
    page.check("input[value=time]")
    labels = page.locator("#value-0 svg text").all_text_contents()
    assert [text for text in labels if ":" in text][-1] == "3:00"


def test_text_of_a_job_cannot_become_part_of_the_page(open_page: Opener) -> None:
    page = open_page("one.html")
    assert EVIL in page.inner_text(".script code")
    assert page.locator("img").count() == 0
    assert page.title() == "first - shoal"


def test_policy_stops_what_slips_through(browser: Browser, folder: Path) -> None:
    text = (folder / "one.html").read_text(encoding="utf-8")
    attacked = folder / "attacked.html"
    attacked.write_text(text.replace("<main>", "<main><p onclick='document.title=1'>press</p>", 1), encoding="utf-8")
    with browser.new_context() as context:
        page = context.new_page()
        said: list[str] = []  # some browsers speak when they read the page, others when the handler would run
        page.on("console", lambda message: said.append(message.text))
        page.goto(attacked.as_uri())
        page.click("text=press")
        limit = time.monotonic() + PATIENCE
        while not said and time.monotonic() < limit:
            page.wait_for_timeout(20)
        assert any("Content Security Policy" in text for text in said)
        assert page.title() == "first - shoal"


@pytest.mark.long
def test_report_of_a_real_job(tmp_path: Path, open_page: Opener) -> None:
    outcome = shoal(tmp_path, "run", "-n", "2", "--run-dir", "job", str(EXAMPLES / "digits.py"), "--epochs", "2")
    assert outcome.code == 0, outcome.stderr
    written = shoal(tmp_path, "report", "job")
    assert (written.code, written.stdout) == (0, "job/report.html\n"), written.stderr
    page = open_page("report.html", folder=tmp_path / "job")
    assert page.inner_text(".state") == "finished"
    assert page.locator("#value-0 path.curve").count() == 2
    assert readout(page).startswith("step 180 ")
    assert page.locator("#value-1 .dot").count() == 2
    assert "not the default" in page.inner_text("#configuration")
    assert page.locator(".bars svg").count() == 3
