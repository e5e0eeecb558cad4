"""The links between hosts of a job over real networks are measured, recorded and shown: one host sends slowly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.cli.records import show
from shoal.events import LinksMeasured
from shoal.watch.record.run_record import read_record
from support.network import Network
from support.network_job import NetworkJob

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

A, B, C = 1, 2, 3  # machines
SLOW = 20e6 / 8  # bytes per second that leave C


@pytest.mark.long
def test_links_between_three_hosts_are_recorded_and_shown_slowest_first(tmp_path: Path) -> None:
    with Network(4) as network:
        network.slow_down(C, "20mbit")
        job = NetworkJob(network, tmp_path, (A, A, B, C), epochs=1)
        assert {job.result(worker) for worker in range(4)} == {"exact"}
        assert job.exit_code(job.coordinator) == 0
    (event,) = job.events(LinksMeasured)
    assert (event.generation, event.hosts, event.measured) == (1, 3, 6), "one worker of each host, both ways"
    home = {0: "A", 1: "A", 2: "B", 3: "C"}  # by worker
    ends = {(home[link.source], home[link.target]) for link in event.links}
    assert ends == {("A", "B"), ("A", "C"), ("B", "A"), ("B", "C"), ("C", "A"), ("C", "B")}
    slow, fast = event.links[:2], event.links[2:]
    assert {link.source for link in slow} == {3}, "what the slow host sends"
    assert all(link.bandwidth < 4 * SLOW for link in slow)
    assert all(link.bandwidth > 4 * SLOW for link in fast)
    assert all(0 < link.latency < 1 for link in event.links)
    text = "\n".join(show.lines(read_record(tmp_path / "run")))
    assert "links between 3 hosts, measured when generation 1 formed, slowest first:" in text
    rows = text.partition("bandwidth\n")[2].splitlines()[:6]
    assert ["(worker 3)" in row.split("  ")[1] for row in rows] == [True, True, False, False, False, False]
