"""Parameter servers in progress, notices, timeline and report."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import msgspec
import pytest

from shoal import events
from shoal.values import ServerLoad
from shoal.watch.board import Board
from shoal.watch.record.incidents import Incidents
from shoal.watch.record.timeline import Timeline
from shoal.watch.report.page import write_report
from shoal.watch.screen.display import open_display
from shoal.watch.screen.notices import notices
from shoal.watch.server_board import MOST_LOSSES, Servers
from shoal.watch.server_words import histogram, progress
from support.records import Job, applied, job_started

LOST = events.ServerLost(server=1, reason="its process was killed by SIGKILL")
GONE = events.ParametersGone(server=0, blocks=7, size=28_000, reason="all servers that held them are lost")


def changed(version: int, *servers: int, **changes: object) -> events.ServersChanged:
    told = events.ServersChanged(
        version=version, servers=servers, is_settled=True, seconds=1.5, size=0, reason="server 1 is lost"
    )
    return msgspec.structs.replace(told, **changes)


def load(server: int, seconds: float) -> ServerLoad:
    """Ten requests a second, each of which waits for 2 ms, and half of the time busy."""
    requests = round(10 * seconds)
    return ServerLoad(
        server=server,
        seconds=seconds,
        bytes_in=1000 * requests,
        bytes_out=3000 * requests,
        requests=requests,
        updates=requests // 2,
        queue_seconds=0.002 * requests,
        busy_seconds=0.5 * seconds,
        held_bytes=5_000_000,
        limit_bytes=2_000_000_000,
    )


def figures(seconds: float, *servers: int, staleness: tuple[int, ...] = ()) -> events.ServersMeasured:
    return events.ServersMeasured(
        version=1,
        loads=tuple(load(server, seconds) for server in servers),
        staleness=staleness,
        clocks=((0, 40), (1, 43)),
    )


STORY: list[events.Event] = [
    *(events.ServerJoined(server=n, host="hut", process=900 + n, address=f"hut:{n}") for n in range(2)),
    changed(1, 0, 1, reason="all servers are here"),
    figures(10.0, 0, 1, staleness=(5, 0)),
    figures(15.0, 0, 1, staleness=(80, 15, 4, 1, 0, 0)),
    LOST,
    changed(2, 0, is_settled=False),
    events.ServerJoined(server=2, host="hut", process=902, address="hut:2"),
    changed(4, 0, 2, size=412_000_000, reason="all blocks have arrived"),
]


def after(*told: events.Event) -> Servers:
    servers = Servers()
    for time, event in enumerate(told):
        servers = servers.apply(event, float(time))
    return servers


def test_pace_is_between_the_last_two_figures() -> None:
    pace = after(*STORY).pace(0)
    assert pace is not None
    assert (round(pace.requests, 6), round(pace.bytes_in), round(pace.bytes_out)) == (10.0, 10_000, 30_000)
    assert (round(pace.wait, 6), round(pace.busy, 6)) == (0.002, 0.5)
    assert after(figures(10.0, 0)).pace(0) is None


def test_a_loss_lasts_until_there_is_a_new_map() -> None:
    assert after(LOST).losses[0].served_again is None
    [loss] = after(*STORY).losses
    assert (loss.server, loss.served_again, loss.blocks) == (1, 1.0, 0)
    [loss] = after(LOST, GONE, msgspec.structs.replace(GONE, server=2)).losses
    assert (loss.blocks, loss.size) == (14, 56_000)


def test_what_is_said_to_be_gone_again_under_the_next_map_is_gone_once() -> None:
    first = msgspec.structs.replace(GONE, version=2)
    later = [msgspec.structs.replace(GONE, server=server, blocks=blocks, size=4000 * blocks, version=3)
             for server, blocks in ((0, 3), (2, 4))]  # fmt: skip
    [loss] = after(LOST, changed(2, 0, is_settled=False), first, changed(3, 0, 2, is_settled=False), *later).losses
    assert (loss.blocks, loss.size) == (7, 28_000)
    assert loss.served_again is None, "not before training goes on from a checkpoint"


def test_parameters_that_are_gone_are_served_again_when_training_goes_on() -> None:
    resumed = events.ProgressResumed(
        generation=2, step=21, time=9.5, seconds=5.0, redone=16, samples_redone=128, taken_back=16, reason="lost"
    )
    [loss] = after(LOST, GONE, changed(3, 0, 2), resumed).losses
    assert loss.served_again == 9.5


def test_a_server_is_lost_once_whoever_says_so() -> None:
    assert after(LOST, LOST).lost == 1
    lanes = Timeline()
    for event in (LOST, GONE, GONE):
        lanes.add(event, 1.0)
    assert [entry.lane for entry in lanes.entries] == ["servers lost", "parameters gone", "parameters gone"]


def test_bytes_that_were_moved_count_when_all_are_in_place() -> None:
    """Each map on the way has those so far."""
    assert after(changed(2, 0, 2, is_settled=False, size=3), changed(3, 0, 2, size=5)).moved == 5


def test_staleness_adds_up_over_ledgers() -> None:
    """Where all servers were lost another one begins to count."""
    told = [figures(10.0 * number, 0, staleness=counts) for number, counts in enumerate(((4, 1), (9, 3, 1), (2, 2)))]
    assert after(*told[:2]).staleness == (9, 3, 1)
    assert after(*told).staleness == (11, 5, 1)


def test_memory_is_bounded() -> None:
    servers = after(*(msgspec.structs.replace(LOST, server=number) for number in range(MOST_LOSSES + 5)))
    assert len(servers.losses) == MOST_LOSSES
    assert servers.lost == MOST_LOSSES + 5


def test_one_line_of_progress() -> None:
    assert progress(Servers()) == ""
    line = progress(after(*STORY[:5]))
    assert line.startswith("2 servers, 20 requests/s, 20 kB/s in, 60 kB/s out, wait 2 ms, busy 50%")
    assert line.endswith("staleness 0: 80%, 1: 15%, 2: 4%, 3: 1%, clocks 40 to 43")
    assert "parameters on their way" in progress(after(*STORY[:7]))


def test_a_histogram_in_words() -> None:
    assert histogram((50, 0, 25, 0, 20, 5)) == "0: 50%, 2: 25%, more: 25%"


def test_notices() -> None:
    said = [line for event in STORY for line in notices(Board(), event, 0.0)]
    assert said == [
        "2 servers serve: all servers are here",
        "server 1 is lost: its process was killed by SIGKILL",
        "server 0 serves, parameters are on their way: server 1 is lost",
        "2 servers serve, 412 MB moved in 1.5 s: all blocks have arrived",
    ]
    [gone] = notices(Board(), GONE, 0.0)
    assert gone.startswith("warning: 7 blocks of parameters (28 kB) are on no server any more")
    one = events.ParametersGone(server=0, blocks=1, size=3_200, reason="all servers that held it are lost")
    assert notices(Board(), one, 0.0)[0].startswith("warning: 1 block of parameters (3.2 kB) is on no server any more")
    left = events.ServerLeft(server=0, reason="it was taken out")
    assert notices(Board(), left, 0.0) == ["server 0 has left: it was taken out"]
    assert after(left).lost == 0
    fault = events.FaultInjected(fault="kill", worker=None, server=1, seconds=None, reason="kill server at 5s")
    assert notices(Board(), fault, 0.0) == ["fault on purpose: kill server 1 (kill server at 5s)"]


@pytest.mark.parametrize("progress", ["plain", "live"])
def test_both_displays_have_the_line(progress: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "160"), ("LINES", "40"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    written = io.StringIO()
    written.isatty = lambda: True  # type: ignore[method-assign]  a terminal, as far as it is asked
    with contextlib.redirect_stdout(written):
        shown = open_display(progress, 1)
        for time, event in enumerate([*STORY[:5], events.WorkerJoined(worker=0, host="h", process=1, address="")]):
            shown.show(event, float(time))
        shown.show(applied(0, 1), 20.0)
        shown.close()
    assert "2 servers, 20 requests/s" in written.getvalue()


def test_an_incident_has_the_loss_and_what_followed() -> None:
    incidents = Incidents()
    for time, event in enumerate([job_started(), *STORY]):
        incidents.add(event, float(time))
    [incident] = incidents
    assert incident.happened == ["server 1 was lost: its process was killed by SIGKILL"]
    assert len(incident.decided) == 2


def test_the_report_has_a_section(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started(), *STORY, GONE)
    page = write_report([job.write()], tmp_path / "report.html").read_text(encoding="utf-8")
    for words in ('<h2 id="servers-title">Servers', "1 (gone)", "412 MB of parameters moved", "2.0 GB", "Staleness"):
        assert words in page
    assert "7 blocks, 28 kB" in page
    assert "its process was killed by SIGKILL" in page
    assert 'href="#servers"' in page


def test_a_report_without_servers_has_none(tmp_path: Path) -> None:
    job = Job(tmp_path / "run")
    job.tell(job_started())
    page = write_report([job.write()], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "servers-title" not in page
    assert 'href="#servers"' not in page
