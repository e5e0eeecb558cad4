"""The report's page as text: what is in it, that nothing breaks out of it, and how it comes to be on disk."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import events
from shoal.cli.records import show
from shoal.errors import UsageError
from shoal.watch.record.run_record import read_record
from shoal.watch.record.series import Point
from shoal.watch.report.charts import BUDGET, ChartData, as_script_text, chart_data, chart_names, thinned
from shoal.watch.report.markup import join, tag
from shoal.watch.report.page import read_runs, write_report
from shoal.watch.report.worker_section import KINDS
from support.records import Job, applied, equipped, eventful, faulty, job_started

EVIL = "</script><img src=x onerror=alert(1)> <!-- ]]> \" ' & \u2028 \\u003c"


class Page(HTMLParser):
    """Elements and texts as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._in == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_of(*run_dirs: Path, target: Path, defaults: dict[str, object] | None = None) -> Page:
    return Page(write_report(run_dirs, target, defaults).read_text(encoding="utf-8"))


def test_page_tells_the_whole_story(tmp_path: Path) -> None:
    page = page_of(eventful(tmp_path / "run"), target=tmp_path / "report.html")
    for words in (
        "worker 3 died on hut, process 803, in all-reduce of gradients",
        "worker 3 (hut, process 803) was killed by SIGKILL; 3 workers go on",
        "1 checkpoint was lost, the last at step 450: part-1-of-3.safetensors: No space left on device",
        "resumed from step-00000300-g1, written by 4 workers",
        "input takes 21% of the time",
        "step-00000500-g1 published, marked best",
    ):
        assert words in page.text
    charts = [attributes for name, attributes in page.tags if name == "figure"]
    data = msgspec.json.decode(page.scripts[0], type=ChartData)
    assert [chart.title for chart in data.charts] == [
        "loss",
        "accuracy",
        "gradient norm",
        "learning rate",
        "samples per second",
        "processor cores in use",
        "memory in use, GB",
    ]
    assert [attributes["id"] for attributes in charts] == [chart.id for chart in data.charts]
    assert {kind for kind in KINDS if kind in page.text} == set(KINDS)


def test_text_of_a_job_stays_text(tmp_path: Path) -> None:
    job = Job(tmp_path / "<b>run")
    job.tell(job_started(EVIL))
    job.step(1, {EVIL: 1.0, "loss": 1.0})
    job.tell(
        events.Advised(worker=None, text=EVIL),
        events.Evaluated(step=1, samples=1, scores={EVIL: 1.0}),
        events.CheckpointLost(checkpoint=EVIL, step=1, worker=0, reason=f"{EVIL}\n{EVIL}"),
        events.WorkerJoined(worker=0, host=EVIL, process=1, address=EVIL),
        events.JobEnded(outcome=EVIL, exit_code=1, reason=EVIL, seconds=1.0),
    )
    job.write()
    with (job.run_dir / "config.toml").open("a") as file:
        file.write(f"evil = {msgspec.json.encode(EVIL).decode()}\n")
    page = page_of(job.run_dir, job.run_dir, target=tmp_path / "report.html", defaults={"evil": EVIL})
    names = {name for name, _ in page.tags}
    assert not names & {"img", "iframe", "object"}
    assert len([name for name, _ in page.tags if name == "script"]) == 2
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert " ".join(EVIL.split()) in page.text
    data = msgspec.json.decode(page.scripts[0], type=ChartData)
    assert EVIL in [chart.title for chart in data.charts]


@given(st.text())
def test_embedded_numbers_never_end_their_script_element(text: str) -> None:
    data = msgspec.convert(
        {"runs": [], "charts": [{"id": "", "title": text, "unit": "", "from_zero": False, "lines": []}]}, ChartData
    )
    written = as_script_text(data)
    assert not set(written) & set("<>&\u2028\u2029")
    assert msgspec.json.decode(written.encode(), type=ChartData) == data


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_markup_gives_back_exactly_the_text(text: str) -> None:
    page = Page(tag("p", text, title=text))
    assert page.tags == [("p", {"title": text})]
    assert "".join(page.texts) == text


def test_policy_allows_exactly_the_pages_own_script_and_style(tmp_path: Path) -> None:
    write_report([eventful(tmp_path / "run")], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    policy = next(attributes["content"] for name, attributes in Page(text).tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for element in ("style", "script"):
        found = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"""(src|href)=["'](?!#|data:,)""", text), "nothing is loaded from anywhere"


def test_settings_that_are_not_the_default_come_first_and_the_rest_is_folded(tmp_path: Path) -> None:
    page = page_of(
        eventful(tmp_path / "run"), target=tmp_path / "r.html", defaults={"workers": 1, "seed": 0, "threads": 0}
    )
    special, _, rest = page.text.partition("other settings, with default values")
    assert "workers 4 1 not the default" in special
    assert "seed 7 0 not the default" in special
    assert "threads 0 0" in rest
    assert "not the default" not in rest


def test_script_versions_and_machines_are_told(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    commit = "8d6f00b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7"
    job.tell(msgspec.structs.replace(job_started("--lr", "0.1"), commit=commit, is_dirty=True))
    job.tell(equipped(0), equipped(1), msgspec.structs.replace(equipped(2, "barn"), gpu="NVIDIA H200", cores=16))
    job.step(1, {"loss": 1.0})
    page = page_of(job.write(), target=tmp_path / "r.html")
    for words in (
        "script examples/digits.py arguments --lr 0.1 commit 8d6f00b1c2d3 , with changes that are not committed",
        "Python 3.11.2 torch 2.13.0+cpu Shoal 0.7.0 system Linux 6.12.0",
        "hut 0, 1 AMD EPYC 9334 32-Core Processor 2 34 GB none",
        "barn 2 AMD EPYC 9334 32-Core Processor 16 34 GB NVIDIA H200",
    ):
        assert words in page.text


def test_the_nodes_of_a_job_on_several_machines_are_listed(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for number, node in enumerate(("left", "right", "left")):
        place = {"process": f"worker {number}", "worker": number, "node": node, "host": "hut", "reason": "it had room"}
        job.tell(msgspec.convert(place, events.ProcessPlaced))
        job.tell(msgspec.structs.replace(equipped(number), node=node))
    job.step(1, {"loss": 1.0})
    page = page_of(job.write(), target=tmp_path / "r.html")
    assert "node host workers servers left hut 0, 2 none right hut 1 none" in page.text
    assert "worker 2 was put on node left (hut)" in page.text
    assert "nodes     left (hut): workers 0, 2; right (hut): worker 1" in "\n".join(
        show.lines(read_record(job.run_dir))
    )


def test_records_of_an_earlier_version_have_a_page_too(tmp_path: Path) -> None:
    """Without equipment, use, commit or epochs, and with fewer fields in every report."""
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for step in range(1, 21):
        job.step(step, {"loss": 1.0 / step})
    job.tell(applied(0, 20))
    job.write()
    lines = (job.run_dir / "events.jsonl").read_text(encoding="utf-8")
    old = re.sub(r',"(use|commit|is_dirty|bytes_shared)":("[^"]*"|null|false|\d+)', "", lines)
    assert old != lines
    (job.run_dir / "events.jsonl").write_text(old, encoding="utf-8")
    page = page_of(job.run_dir, target=tmp_path / "r.html")
    assert "left out" not in page.text
    assert "The record does not say what the workers ran on." in page.text
    assert "Processor and memory" not in page.text
    assert "over samples" in page.text
    assert "over epochs" not in page.text


def test_best_values_stand_beside_the_last_ones(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for step, value in ((1, 3.0), (2, 1.0), (3, 2.0)):
        job.step(step, {"loss": value, "norm": 10.0 * step})
    page = page_of(job.write(), target=tmp_path / "r.html")
    assert "loss 2.0000 training, best 1.0000 at step 2" in page.text
    assert "loss training 2.0000 1.0000 2 1.0000 2 3.0000 1" in page.text
    assert "norm training 30.0000 10.0000 1 30.0000 3" in page.text, "only the ends are known"


def test_a_live_page_loads_itself_again_also_without_a_script(tmp_path: Path) -> None:
    run_dir = eventful(tmp_path / "run")
    text = write_report([run_dir], tmp_path / "r.html", refresh=5.0).read_text(encoding="utf-8")
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in text
    assert '<html lang="en" data-live="5">' in text
    text = write_report([run_dir], tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'http-equiv="refresh"' not in text
    assert "data-live" not in text.partition("<script")[0]


def test_several_runs_share_charts_and_show_what_differs(tmp_path: Path) -> None:
    first = eventful(tmp_path / "a" / "run")
    second = eventful(tmp_path / "b" / "run", steps=500)
    with (second / "config.toml").open("a") as file:
        file.write("more = 1\n")
    runs = read_runs([first, second])
    data = chart_data(runs)
    loss = data.charts[0]
    assert [(line.run, line.held_out) for line in loss.lines] == [(0, False), (0, True), (1, False), (1, True)]
    assert [run.label for run in data.runs] == [str(first), str(second)], "the same name twice would tell nothing"
    assert len({run.dash for run in data.runs}) == 2
    page = page_of(first, second, target=tmp_path / "r.html")
    assert "differs between runs" in page.text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_faults_are_told_with_what_was_decided_and_what_they_cost(tmp_path: Path) -> None:
    page = page_of(faulty(tmp_path / "run"), target=tmp_path / "r.html")
    for words in (
        "What went wrong, and what it cost",
        "9.8 s without progress, 3 steps (384 samples) redone, goodput 94%.",
        "on purpose: kill worker 2 (kill worker every 15s)",
        "generation 5 with 4 workers: worker 5 came in place of worker 3",
        "Parameters differed between workers once",
        "goodput 94% 9.8 s without progress",
        "undisturbed 512 samples/s",
    ):
        assert words in page.text
    lanes = [attributes["aria-label"] for name, attributes in page.tags if attributes.get("class") == "lane"]
    assert lanes == [
        "faults on purpose: 3", "lost: 1", "expelled: 1", "joined: 5", "generations: 5", "coordinator: 1",
        "differed: 1", "no progress: 4", "too few workers: 1",
    ]  # fmt: skip
    [run] = read_runs([tmp_path / "run"])
    marks = chart_data([run]).runs[0].marks
    assert [round(mark.until - mark.time, 2) for mark in marks if mark.until is not None] == [1.25, 0.5, 0.75, 8.25]
    assert sum(mark.is_problem for mark in marks if mark.until is None) == 7


def test_a_job_without_incidents_says_so_in_one_line(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    job.step(1, {"loss": 1.0})
    page = page_of(job.write(), target=tmp_path / "r.html")
    assert "Nothing went wrong" in page.text
    assert "Goodput" not in page.text


def test_run_that_never_started_has_a_page(tmp_path: Path) -> None:
    run_dir = Job(tmp_path / "run").write()
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "events.jsonl").unlink()
    page = page_of(run_dir, target=tmp_path / "report.html")
    assert "not started" in page.text
    assert "No events are recorded." in page.text


def test_damage_is_said_on_the_page(tmp_path: Path) -> None:
    run_dir = eventful(tmp_path / "run")
    for name in ("events.jsonl", "metrics.jsonl"):
        with (run_dir / name).open("ab") as file:
            file.write(b"broken\n")
    text = page_of(run_dir, target=tmp_path / "report.html").text
    assert "1 line of events.jsonl left out" in text
    assert "1 line of metrics.jsonl left out" in text


def test_page_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    run_dir = eventful(tmp_path / "run")
    target = tmp_path / "report.html"
    target.write_text("old")
    write_report([run_dir], target)
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write_report([run_dir], tmp_path / "folder.html")
    with pytest.raises(UsageError, match="--to"):
        write_report([run_dir], tmp_path / "missing" / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "report.html", "run"]


@pytest.mark.long
def test_many_names_make_coarser_curves_not_an_endless_page(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for step in range(1, 1201):
        job.step(step, {f"name {n}": float(step) for n in range(150)})
    [run] = read_runs([job.write()])
    data = chart_data([run])
    assert len(chart_names([run])) == 150
    assert sum(len(line.step) for chart in data.charts for line in chart.lines) <= BUDGET
    first = data.charts[0].lines[0]
    assert first.step[-1] == 1200
    assert first.low is not None
    assert first.high is not None
    assert (first.low[0], first.high[-1]) == (1.0, 1200.0)


@given(st.integers(0, 300), st.integers(1, 50))
def test_thinned_points_cover_everything(count: int, most: int) -> None:
    points = [Point(step, 0.0, float(step), float(step), float(step)) for step in range(1, count + 1)]
    found = thinned(points, most)
    assert len(found) <= most
    assert [point.low for point in found][:1] == [1.0][:count]
    assert [point.step for point in found][-1:] == [count][:count]
    assert all(later.low == before.step + 1 for before, later in itertools.pairwise(found))


def test_names_that_are_no_text_become_readable(tmp_path: Path) -> None:
    assert join("\udcff") == "?"
    run_dir = eventful(Path(f"{tmp_path}/caf\udce9"))
    assert "caf?" in page_of(run_dir, target=tmp_path / "report.html").text
