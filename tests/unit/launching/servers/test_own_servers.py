"""A job's own servers as the launcher sees them: a real keeper, processes that are only said to run."""

from __future__ import annotations

import contextlib
import select
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from shoal import events
from shoal.engines.engine import BroughtFile
from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.processes.running import Gone, JobProcess, Processes
from shoal.launching.servers.own_servers import ENDING_SECONDS, OwnServers, OwnServersConfig, free_memory
from shoal.launching.servers.server_side import Seen
from shoal.parameters.keeper.keeper import KeeperConfig
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.values import Address
from shoal.wire.keeper_messages import ServerBeat, ServerFigures, SpaceEnd, SpaceFailed
from support.servers import StandInServer

TOKEN = "a token"


class SaidToRun(Processes):
    """Starts nothing."""

    def __init__(self) -> None:
        self.started: list[JobProcess] = []
        self.signals: list[tuple[Collection[str], signal.Signals]] = []
        self.fails = False

    def start(self, planned: JobProcess) -> None:
        if self.fails:
            raise UsageError("no more processes")
        self.started.append(planned)

    def send_signal(self, names: Collection[str], number: signal.Signals) -> None:
        self.signals.append((names, number))


@contextlib.contextmanager
def own_servers(count: int, processes: Processes, silence_limit: float = 60.0) -> Iterator[OwnServers]:
    keeper = KeeperConfig(
        listen=Address("127.0.0.1", 0), token=TOKEN, expected=count, replicas=1, silence_limit=silence_limit
    )
    servers = OwnServers(OwnServersConfig(keeper, Path("token"), Path("logs"), memory="2GB"), processes)
    with contextlib.closing(servers):
        yield servers


def look_until(servers: OwnServers, kind: type[events.Event]) -> Seen:
    """All that was seen up to an event of that kind."""
    seen = Seen()
    limit = time.monotonic() + 10
    while not any(isinstance(event, kind) for event in seen.events):
        assert time.monotonic() < limit, f"no {kind.__name__}: {seen}"
        poll = select.poll()
        for source in servers.sources:
            poll.register(source.fileno(), select.POLLIN)
        poll.poll(100)
        more = servers.look(time.monotonic())
        seen.events += more.events
        seen.lines += more.lines
        seen.failure = seen.failure or more.failure
    return seen


def exited(server: int, code: int = -9, *last: str) -> Gone:
    return Gone(f"server {server}", code, last)


def test_processes_are_started_with_what_they_need() -> None:
    processes = SaidToRun()
    with own_servers(2, processes) as servers:
        assert [planned.name for planned in processes.started] == ["server 0", "server 1"]
        planned = processes.started[1]
        assert planned.spec.command[-5:] == (
            "server",
            f"--keeper={servers.keeper.address}",
            "--number=1",
            "--listen=127.0.0.1",
            "--memory=2000000000",
        )
        assert planned.spec.files == (BroughtFile(Path("token"), "SHOAL_TOKEN_FILE"),)
        assert planned.log == Path("logs/server-1.log")
        assert planned.spec.variables["OMP_NUM_THREADS"] == "1"
        assert servers.owns("server 1")
        assert not servers.owns("worker 1")


def test_one_that_dies_is_replaced_and_its_last_lines_are_shown() -> None:
    processes = SaidToRun()
    with own_servers(1, processes) as servers, StandInServer(servers.keeper.address, TOKEN, 0) as first:
        seen = look_until(servers, events.ServersChanged)
        assert [type(event) for event in seen.events] == [events.ServerJoined, events.ServersChanged]
        assert servers.serving == (0,)
        first.close()
        servers.take(exited(0, 1, "Traceback", "MemoryError"), time.monotonic())
        seen = look_until(servers, events.ServerLost)
        assert seen.lines == [
            "[server 0] Traceback",
            "[server 0] MemoryError",
            "server 1 is started: server 0 exited with code 1",
        ]
        assert servers.owns("server 1")
        assert servers.serving == ()
        assert not seen.failure


def test_figures_come_at_once_and_then_now_and_then() -> None:
    with own_servers(1, SaidToRun()) as servers, StandInServer(servers.keeper.address, TOKEN, 0) as server:
        server.send(ServerBeat(figures=ServerFigures(requests=7, seconds=1.0)))
        seen = look_until(servers, events.ServersMeasured)
        [measured] = [event for event in seen.events if isinstance(event, events.ServersMeasured)]
        assert measured.loads[0].requests == 7
        later = servers.look(time.monotonic() + 2)
        assert [event.loads[0].requests for event in later.shown] == [7]
        assert not any(isinstance(event, events.ServersMeasured) for event in later.events)


def test_an_administrator_adds_removes_and_stops() -> None:
    processes = SaidToRun()
    with own_servers(1, processes) as servers, StandInServer(servers.keeper.address, TOKEN, 0) as first:
        look_until(servers, events.ServersChanged)
        with KeeperClient(servers.keeper.address, TOKEN) as client:
            client.change_servers(more=1)
            servers.look(time.monotonic())
            assert [planned.name for planned in processes.started] == ["server 0", "server 1"]
            with StandInServer(servers.keeper.address, TOKEN, 1) as second:
                look_until(servers, events.ServersChanged)
                assert client.status().map is not None
                first.await_map(2)
                second.await_map(2)
            client.stop_group()
            servers.look(time.monotonic())
        assert servers.is_stop_wanted


def test_servers_that_never_come_up_end_the_job() -> None:
    processes = SaidToRun()
    with own_servers(1, processes) as servers:
        now, failure = time.monotonic(), ""
        for server in range(5):
            servers.take(exited(server, 1), now)
            now += 60
            failure = failure or servers.look(now).failure
        given_up = texts.servers_never_join(5, "exited with code 1")
        assert failure == texts.servers_hopeless(given_up, Path("logs/server-4.log"))
        assert len(processes.started) == 5


def test_nobody_is_replaced_at_the_end() -> None:
    processes = SaidToRun()
    with own_servers(2, processes) as servers:
        servers.cease()
        servers.take(exited(0), time.monotonic())
        assert servers.look(time.monotonic() + 100).lines == []
        assert len(processes.started) == 2


def test_a_process_that_cannot_be_started_is_said() -> None:
    processes = SaidToRun()
    processes.fails = True
    with own_servers(1, processes) as servers:
        assert "shoal: no more processes" in servers.look(time.monotonic()).lines


def test_memory_that_is_free() -> None:
    assert free_memory() > 0


def test_one_that_the_keeper_has_put_out_is_ended_so_that_its_place_is_filled() -> None:
    processes = SaidToRun()
    with own_servers(1, processes, silence_limit=0.3) as servers, StandInServer(servers.keeper.address, TOKEN, 0):
        look_until(servers, events.ServerLost)  # it says nothing more, as one that is stopped
        assert processes.signals == [({"server 0"}, signal.SIGKILL)]


def test_one_that_ends_by_itself_is_left_time_to_say_why() -> None:
    processes = SaidToRun()
    with own_servers(1, processes) as servers, StandInServer(servers.keeper.address, TOKEN, 0) as server:
        look_until(servers, events.ServersChanged)
        server.close()
        look_until(servers, events.ServerLost)
        assert (processes.signals, servers.serving) == ([], ())
        servers.look(time.monotonic() + ENDING_SECONDS)
        assert processes.signals == [({"server 0"}, signal.SIGKILL)]  # it hangs: its place is needed


def test_people_are_told_of_a_job_that_the_servers_have_ended() -> None:
    with own_servers(1, SaidToRun()) as servers, StandInServer(servers.keeper.address, TOKEN, 0) as server:
        with KeeperClient(servers.keeper.address, TOKEN) as keeper:
            keeper.open_space(SpaceTerms("theirs", "its key"))
        server.send(SpaceFailed(job="theirs", end=SpaceEnd("it cannot be applied")))
        seen, limit = Seen(), time.monotonic() + 10
        while "the servers have ended job theirs: it cannot be applied" not in seen.lines:
            assert time.monotonic() < limit, seen
            seen.lines += servers.look(time.monotonic()).lines
            time.sleep(0.01)
