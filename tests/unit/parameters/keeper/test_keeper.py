"""The keeper over real sockets: who is let in, what each is told, how a dead or silent server is noticed."""

from __future__ import annotations

import dataclasses
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from shoal.errors import AddressUnavailable, Refused, UsageError
from shoal.parameters.connections.purposes import KEEPER_PURPOSE, keeper_job_purpose
from shoal.parameters.keeper.group_events import (
    BlocksLost,
    GroupEvent,
    GroupServerJoined,
    GroupServerLost,
    MapMade,
    MoreWanted,
    ServerRemoved,
    SpaceEnded,
    StopWanted,
)
from shoal.parameters.keeper.keeper import Keeper, KeeperConfig
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.transport.connection import strangers as strangers_module
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.introduction import connect
from shoal.values import Address, ServerMap
from shoal.wire.keeper_messages import (
    Filled,
    GroupNews,
    Lost,
    OpenSpace,
    ServerBeat,
    ServerFigures,
    ServerJoin,
    SpaceEnd,
    SpaceFailed,
    WatchGroup,
)
from shoal.wire.note import PARAMETER_VERSION, Note
from shoal.wire.note_frames import HEAD_BYTES, decode_body, decode_head, encode_note
from shoal.wire.parameter_messages import AnyNote, Refusal
from support.flood import flood

TOKEN = "the group's"
SPACE = SpaceTerms(job="job", key="the job's", quota=0)
PATIENCE = 20.0  # seconds until a test gives up
LOCAL = Address("127.0.0.1", 0)


class Peer:
    """The other end of one of the keeper's connections, in plain blocking calls."""

    def __init__(self, at: Address, purpose: bytes = KEEPER_PURPOSE, token: str = TOKEN) -> None:
        met = connect(at, Key(purpose, token), PATIENCE)
        self.socket = met.endpoint
        self.session = met.handshake.session

    def opened(self, news: AnyNote) -> tuple[ServerMap | None, list[SpaceTerms]]:
        """What a server is told, with the keys that were sealed for it."""
        assert isinstance(news, GroupNews), news
        return news.map, [SpaceTerms.opened(sealed, self.session) for sealed in news.spaces]

    def send(self, note: Note, payload: bytes = b"") -> None:
        self.socket.sendall(encode_note(note, len(payload)) + payload)

    def hear(self) -> AnyNote:
        body, _ = decode_head(self._read(HEAD_BYTES))
        return decode_body(self._read(body))

    def hear_map(self) -> ServerMap | None:
        news = self.hear()
        assert isinstance(news, GroupNews), news
        return news.map

    def hear_refusal(self) -> Refusal:
        refusal = self.hear()
        assert isinstance(refusal, Refusal), refusal
        with pytest.raises((EOFError, ConnectionError)):
            self._read(1)
        return refusal

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


class Group:
    """A keeper, what it said, and all peers of a test."""

    def __init__(self, keeper: Keeper, events: queue.SimpleQueue[GroupEvent]) -> None:
        self.keeper = keeper
        self.events = events
        self.peers: list[Peer] = []

    def peer(self, purpose: bytes = KEEPER_PURPOSE, token: str = TOKEN) -> Peer:
        self.peers.append(Peer(self.keeper.address, purpose, token))
        return self.peers[-1]

    def server(self, number: int, version: int = PARAMETER_VERSION) -> Peer:
        peer = self.peer()
        peer.send(
            ServerJoin(version=version, number=number, address=Address("127.0.0.1", 9), host="here", process=number)
        )
        return peer

    def worker(self) -> Peer:
        peer = self.peer(keeper_job_purpose("job"), SPACE.key)
        peer.send(WatchGroup(version=PARAMETER_VERSION, job="job"))
        return peer

    def client(self) -> KeeperClient:
        return KeeperClient(self.keeper.address, TOKEN, PATIENCE)

    def await_event(self, kind: type[GroupEvent]) -> GroupEvent:
        while not isinstance(event := self.events.get(timeout=PATIENCE), kind):
            pass
        return event


@contextmanager
def group_of(expected: int, replicas: int = 1, silence_limit: float = PATIENCE) -> Iterator[Group]:
    events: queue.SimpleQueue[GroupEvent] = queue.SimpleQueue()
    config = KeeperConfig(LOCAL, TOKEN, expected, replicas, (SPACE,), silence_limit)
    keeper = Keeper(config, events.put)
    group = Group(keeper, events)
    keeper.start()
    try:
        yield group
    finally:
        for peer in group.peers:
            peer.close()
        keeper.close()


def test_servers_hear_of_jobs_at_once_and_of_the_map_when_all_are_there() -> None:
    with group_of(2) as group:
        worker = group.worker()
        assert worker.hear() == GroupNews(map=None)
        first = group.server(0)
        assert first.opened(first.hear()) == (None, [SPACE])
        second = group.server(1)
        news = second.hear()
        assert isinstance(news, GroupNews)
        assert news.map is not None
        assert [server.number for server in news.map.servers] == [0, 1]
        assert second.opened(news) == first.opened(first.hear()) == (news.map, [SPACE])
        assert worker.hear() == GroupNews(map=news.map), "keys of jobs are for servers only"
        assert isinstance(group.await_event(GroupServerJoined), GroupServerJoined)
        assert group.await_event(MapMade) == MapMade(news.map, 0.0, 0)


def test_a_server_whose_connection_closes_is_lost_and_all_are_told() -> None:
    with group_of(2, replicas=2) as group:
        first, second, worker = group.server(0), group.server(1), group.worker()
        while worker.hear_map() is None:
            pass
        first.close()
        made = worker.hear_map()
        assert made is not None
        assert (made.before, made.after) == ((0, 1), (1,))
        event = group.await_event(GroupServerLost)
        assert isinstance(event, GroupServerLost)
        assert event.number == 0
        while made != second.hear_map():
            pass
        second.send(Filled(view=made.version, size=5))
        assert (settled := worker.hear_map()) is not None
        assert settled.is_settled


def test_a_silent_server_is_lost_and_told_so_when_it_wakes_up() -> None:
    with group_of(2, silence_limit=0.4) as group:
        silent, lively = group.server(0), group.server(1)
        lively.socket.settimeout(0.1)
        made: ServerMap | None = None
        while made is None or made.after != (1,):
            lively.send(ServerBeat(figures=ServerFigures()))
            with suppress(TimeoutError):
                made = lively.hear_map()
        lost = group.await_event(GroupServerLost)
        assert isinstance(lost, GroupServerLost)
        assert lost.number == 0
        assert "nothing was heard" in lost.reason
        while not isinstance(refusal := silent.hear(), Refusal):
            pass
        assert (refusal.kind, "server 0 is not in the group any more" in refusal.reason) == ("lost", True)
        for _ in range(8):  # twice as long as the other was silent
            lively.send(ServerBeat(figures=ServerFigures()))
            with suppress(TimeoutError):
                lively.hear()
        lively.close()
        last = group.await_event(GroupServerLost)
        assert isinstance(last, GroupServerLost)
        assert "closed" in last.reason


def test_the_launcher_may_say_that_a_server_is_gone_and_its_number_is_not_used_again() -> None:
    with group_of(1) as group:
        server = group.server(0)
        assert server.hear_map() is not None
        group.keeper.lose(0, "its process ended")
        assert "its process ended" in server.hear_refusal().reason
        assert group.await_event(GroupServerLost) == GroupServerLost(0, "its process ended")
        assert "number 0 was used before" in group.server(0).hear_refusal().reason
        assert (made := group.server(1).hear_map()) is not None
        assert made.is_settled


def test_a_server_that_is_taken_out_hears_a_map_without_it_and_is_not_lost() -> None:
    with group_of(2) as group, group.client() as client:
        first, second = group.server(0), group.server(1)
        assert isinstance(second.hear(), GroupNews)
        with pytest.raises(Refused, match="no server 5"):
            client.change_servers(remove=(5,))
        client.change_servers(remove=(0,))
        while (made := first.hear_map()) is None or made.is_settled:
            pass
        assert [server.number for server in made.servers] == [0, 1]
        second.send(Filled(view=made.version))
        assert (settled := first.hear_map()) is not None
        assert [server.number for server in settled.servers] == [1]
        assert group.await_event(ServerRemoved) == ServerRemoved(0)
        first.close()
        client.change_servers(more=2)
        assert isinstance(event := group.events.get(timeout=PATIENCE), MoreWanted), "and no loss before it"
        assert event.count == 2


def test_lost_blocks_are_reported() -> None:
    with group_of(1) as group:
        group.server(0).send(Lost(view=1, job="job", blocks=3, size=70))
        assert group.await_event(BlocksLost) == BlocksLost(0, "job", 3, 70, version=1)


def test_figures_of_servers_and_of_jobs_are_in_the_status() -> None:
    with group_of(2) as group, group.client() as client:
        home, other = group.server(0), group.server(1)
        staleness, clocks = (("job", (5, 1)),), (("job", ((0, 6),)),)
        home.send(ServerBeat(figures=ServerFigures(requests=7), staleness=staleness, clocks=clocks))
        other.send(ServerBeat(figures=ServerFigures(requests=9)))
        status = client.status()
        while [(number, figures.requests) for number, figures in status.figures] != [(0, 7), (1, 9)]:
            status = client.status()
        assert (status.spaces, status.staleness, status.clocks) == (("job",), staleness, clocks)
        kept = group.keeper.status()
        assert (kept.map, kept.figures) == (status.map, status.figures)


def test_jobs_come_and_go_and_servers_hear_of_it() -> None:
    with group_of(1) as group, group.client() as client:
        server, worker = group.server(0), group.worker()
        assert isinstance(server.hear(), GroupNews)
        assert isinstance(worker.hear(), GroupNews)
        more = SpaceTerms(job="another", key="t", quota=10)
        client.open_space(more)
        news = server.hear()
        assert server.opened(news)[1] == [SPACE, more]
        with pytest.raises(Refused, match="a job named another uses this group already"):
            client.open_space(SpaceTerms(job="another", key="u", quota=10))
        assert group.peer(keeper_job_purpose("another"), "t").socket.fileno() > 0
        client.close_space("job")
        assert worker.hear_refusal().kind == "unknown-job"
        with pytest.raises(Refused):
            group.worker()
        client.stop_group()
        assert group.await_event(StopWanted) == StopWanted()


def test_strangers_and_garbage_are_turned_away_and_nobody_else_notices() -> None:
    with group_of(1) as group:
        for purpose, token in ((KEEPER_PURPOSE, "wrong"), (KEEPER_PURPOSE, SPACE.key), (b"parameters server", TOKEN)):
            with pytest.raises(Refused, match="wrong token"):
                Peer(group.keeper.address, purpose, token)
        with socket.create_connection((group.keeper.address.host, group.keeper.address.port), PATIENCE) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            with suppress(ConnectionError):
                while stranger.recv(4096):
                    pass
        garbage = group.peer()
        garbage.socket.sendall(b"x" * 1000)
        assert "it is not Shoal's" in garbage.hear_refusal().reason
        assert group.server(0).hear_map() is not None


def refused_notes() -> list[tuple[str, Callable[[Group], Peer]]]:
    space = SpaceTerms(job="mine", key="t", quota=0).sealed(b"another connection's")

    def sent(purpose: bytes, token: str, note: Note, payload: bytes = b"") -> Callable[[Group], Peer]:
        def act(group: Group) -> Peer:
            peer = group.peer(purpose, token)
            peer.send(note, payload)
            return peer

        return act

    job = (keeper_job_purpose("job"), SPACE.key)
    return [
        ("version 77", lambda group: group.server(0, version=77)),
        ("version 77", sent(*job, WatchGroup(version=77, job="job"))),
        ("a worker may only watch", sent(*job, Filled(view=1))),
        ("a worker may only watch", sent(*job, SpaceFailed(job="job", end=SpaceEnd("so it says")))),
        ("a worker may only watch", sent(*job, ServerJoin(version=1, number=0, address=LOCAL, host="", process=0))),
        ("another job's token", sent(*job, WatchGroup(version=PARAMETER_VERSION, job="other"))),
        ("not for the keeper", sent(KEEPER_PURPOSE, TOKEN, Filled(view=1))),
        ("raw bytes", sent(KEEPER_PURPOSE, TOKEN, OpenSpace(request=1, space=space), b"xxxx")),
        ("not one for this connection", sent(KEEPER_PURPOSE, TOKEN, OpenSpace(request=1, space=space))),
    ]


@pytest.mark.parametrize(("words", "act"), refused_notes())
def test_what_may_not_be_said_is_refused_in_words(words: str, act: Callable[[Group], Peer]) -> None:
    with group_of(1) as group:
        refusal = act(group).hear_refusal()
        assert words.replace("version 77", "not 77") in refusal.reason
        assert (refusal.kind == "version") == (words == "version 77")
        assert group.keeper.status().spaces == ("job",)


def test_a_job_that_one_server_cannot_go_on_with_is_ended_on_all() -> None:
    end = SpaceEnd("server 0 has no room", "memory")
    with group_of(2) as group:
        first, second = group.server(0), group.server(1)
        for server in (first, second):
            while server.hear_map() is None:
                pass
        for _ in range(2):  # each server says it that comes to it
            first.send(SpaceFailed(job="job", end=end))
        first.send(SpaceFailed(job="nobody's", end=end))
        for server in (first, second):
            assert server.opened(server.hear())[1] == [dataclasses.replace(SPACE, end=end)]
        assert group.await_event(SpaceEnded) == SpaceEnded("job", "server 0 has no room")
        late = group.server(2)
        assert late.opened(late.hear())[1] == [dataclasses.replace(SPACE, end=end)]
        with group.client() as client:
            client.close_space("job")
            client.open_space(SPACE)
        while late.opened(late.hear())[1] != [SPACE]:
            pass


def test_a_worker_cannot_open_spaces() -> None:
    with group_of(1) as group:
        worker = group.worker()
        assert isinstance(worker.hear(), GroupNews)
        worker.send(OpenSpace(request=1, space=SpaceTerms(job="mine", key="t").sealed(worker.session)))
        refusal = worker.hear()
        assert isinstance(refusal, Refusal)
        assert "a worker may only watch" in refusal.reason
        assert group.keeper.status().spaces == ("job",)


def test_too_many_strangers_push_out_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers_module, "MOST", 3)
    with group_of(1) as group:
        place = (group.keeper.address.host, group.keeper.address.port)
        strangers = [socket.create_connection(place, PATIENCE) for _ in range(4)]
        try:
            while strangers[0].recv(100):
                pass
            assert group.server(0).hear_map() is not None
        finally:
            for stranger in strangers:
                stranger.close()


def test_a_flood_leaves_only_so_many_open_and_servers_get_through() -> None:
    with group_of(2) as group:
        first = group.server(0)
        assert isinstance(first.hear(), GroupNews)
        with flood(group.keeper.address, 600) as silent:
            assert silent.still_open() <= strangers_module.MOST + 16
            assert group.server(1).hear_map() is not None
            first.send(ServerBeat(figures=ServerFigures()))
            assert group.keeper.status().map is not None


def test_strangers_that_say_nothing_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with group_of(1) as group:
        proved = group.peer()
        monkeypatch.setattr(strangers_module, "SECONDS", 0.1)
        with pytest.raises((EOFError, ConnectionError)):
            proved.hear()


def test_a_client_says_where_nobody_answers_and_which_token_is_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(AddressUnavailable, match=f"{address}.*no answer in time.*shoal servers start"):
            KeeperClient(address, TOKEN, timeout=0.1)
        with pytest.raises(AddressUnavailable, match="choose another address or port"):
            Keeper(KeeperConfig(address, TOKEN, 1), print)
    with pytest.raises(AddressUnavailable, match=str(address)):
        KeeperClient(address, TOKEN, PATIENCE)
    with group_of(1) as group, pytest.raises(Refused, match="wrong token"):
        KeeperClient(group.keeper.address, "wrong", PATIENCE)


def test_a_keeper_needs_a_token_and_closes_in_any_state() -> None:
    with pytest.raises(UsageError, match="token"):
        Keeper(KeeperConfig(LOCAL, "", 1), print)
    keeper = Keeper(KeeperConfig(LOCAL, TOKEN, 1), print)
    keeper.close()
    keeper.close()
    keeper.lose(0, "late news")
    assert "shoal-keeper" not in {thread.name for thread in threading.enumerate()}
