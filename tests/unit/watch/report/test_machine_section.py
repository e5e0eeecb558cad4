"""What `shoal show` and the report tell of a job's machines: placements, the engine's lines, links between hosts."""

from __future__ import annotations

import html
import re
from pathlib import Path

import msgspec

from shoal import events
from shoal.cli.records import machine_lines, show
from shoal.values import HostLink
from shoal.watch.record.run_record import read_record
from shoal.watch.report.page import write_report
from support.records import Job, equipped, job_started


def page_of(job: Job) -> str:
    """The text of the report's page."""
    page = write_report([job.write()], job.run_dir / "r.html").read_text(encoding="utf-8")
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))


def test_links_between_hosts_and_what_the_engine_said_are_told(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for number, node in enumerate(("left", "right")):
        place = {"process": f"worker {number}", "worker": number, "node": node, "host": "hut", "reason": "it had room"}
        job.tell(msgspec.convert(place, events.ProcessPlaced))
    job.tell(events.EngineSaid(text="worker 2 waits for a place: all 2 slots are in use", is_problem=True))
    slow = HostLink(source=1, target=0, source_host="hut", target_host="hut", latency=0.00021, bandwidth=1.25e6)
    fast = HostLink(source=0, target=1, source_host="hut", target_host="hut", latency=0.0123, bandwidth=1.1e8)
    more = (slow, *[fast] * 30)
    job.tell(events.LinksMeasured(generation=2, hosts=2, links=more, measured=40, seconds=0.1))
    job.step(1, {"loss": 1.0})
    page = page_of(job)
    assert "Links between 2 hosts, measured when generation 2 formed, slowest first" in page
    assert "from to latency bandwidth right (worker 1) left (worker 0) 0.21 ms 1.2 MB/s" in page
    assert "left (worker 0) right (worker 1) 12 ms 110 MB/s" in page
    assert "(20 faster ones are not shown)" in page
    assert "worker 2 waits for a place: all 2 slots are in use" in page
    assert "the slowest of 40 links between 2 hosts goes from hut (worker 1) to hut (worker 0): 1.2 MB/s" in page
    shown = "\n".join(show.lines(read_record(job.run_dir)))
    assert re.search(r"0:00  worker 1 on right \(hut\): it had room", shown)
    assert re.search(r"0:00  ! worker 2 waits for a place: all 2 slots are in use", shown)
    assert re.search(r"right \(worker 1\) +left \(worker 0\) +0.21 ms +1.2 MB/s", shown)
    assert shown.count("12 ms") == machine_lines.MOST_LINKS - 1
    assert f"({40 - machine_lines.MOST_LINKS} faster ones are not shown)" in shown


def test_placements_that_are_too_many_are_counted(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    for number in range(20):
        place = {"process": f"worker {number}", "worker": number, "node": "a", "host": "hut", "reason": "it had room"}
        said = events.EngineSaid(text=f"line {number}", is_problem=False)
        job.tell(msgspec.convert(place, events.ProcessPlaced), said)
    shown = "\n".join(show.lines(read_record(job.write())))
    assert shown.count("it had room") == machine_lines.MOST_PLACEMENTS
    assert shown.count("(12 earlier ones are in the report)") == 2
    assert "line 19" in shown and "line 11" not in shown


def test_hosts_of_workers_that_no_engine_has_placed_are_shown(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    job.tell(equipped(0), equipped(1, "barn"), equipped(2))
    assert "nodes     hut: workers 0, 2; barn: worker 1" in "\n".join(show.lines(read_record(job.write())))
