"""Somebody between two processes of a job, on every kind of connection: named and refused, and nothing is gained."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import pytest

from shoal.engines.engine import MachineNotice
from shoal.engines.nodes.agent_line import PURPOSE as AGENT_PURPOSE
from shoal.engines.waiting import wait_for
from shoal.errors import AddressUnavailable, PeerLost, Refused
from shoal.events import ConnectionIntercepted
from shoal.membership.watcher import WatcherClient
from shoal.parameters.connections.purposes import SERVER_PURPOSE
from shoal.parameters.keeper.group_events import InterceptionSeen
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.transport.connection import introduction
from shoal.transport.connection.door import interception
from shoal.transport.connection.handshake import Key
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Address
from support.collectives import PATIENCE, TOKEN, generation_of, in_threads
from support.encryption import insisting_on_tls
from support.interception import Interceptor, Player
from support.membership_job import Job
from support.nodes import open_nodes
from support.server_groups import TOKEN as GROUP_TOKEN
from support.server_groups import Group, group_of, wait_until


@pytest.fixture(autouse=True)
def far_away() -> Iterator[None]:
    """Connections that this process makes and takes are encrypted, as those to another machine are."""
    with insisting_on_tls():
        yield


@dataclass(frozen=True)
class Service:
    """Somebody who listens."""

    address: Address
    connect: Callable[[Address], Closable]  # to it, or to whoever is in between
    interceptions: Callable[[], list[str]]  # hosts of which it has told that somebody there decrypts


class Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def coordinator(run_dir: Path) -> Iterator[Service]:
    with Job(run_dir, workers=1) as job:

        def connect(address: Address) -> WatcherClient:
            return WatcherClient.connect(address, job.token, timeout=PATIENCE, is_launcher=False)

        def interceptions() -> list[str]:
            return [event.source for event in job.events() if isinstance(event, ConnectionIntercepted)]

        yield Service(job.address, connect, interceptions)


def seen_by(group: Group, server: int | None) -> Callable[[], list[str]]:
    return lambda: [
        event.source for event in group.events if isinstance(event, InterceptionSeen) and event.number == server
    ]


@contextmanager
def keeper(_: Path) -> Iterator[Service]:
    with group_of(1) as group:
        yield Service(
            group.keeper.address, lambda address: KeeperClient(address, GROUP_TOKEN), seen_by(group, server=None)
        )


@contextmanager
def server(_: Path) -> Iterator[Service]:
    with group_of(1) as group:
        key = Key(SERVER_PURPOSE, GROUP_TOKEN)
        yield Service(
            group.servers[0].address,
            lambda address: introduction.connect(address, key, PATIENCE).endpoint,
            seen_by(group, server=0),
        )


@contextmanager
def launcher(_: Path) -> Iterator[Service]:
    """It waits for agents, as one with `--on ssh` does."""
    with NodesOpen() as nodes:
        key = Key(AGENT_PURPOSE, nodes.engine._lines.token)
        yield Service(
            Address("127.0.0.1", nodes.engine._lines.port),
            lambda address: introduction.connect(address, key, PATIENCE).endpoint,
            lambda: [
                source
                for source in ("127.0.0.1", "")
                for notice in nodes.notices
                if notice == MachineNotice(interception("the launcher", source).reason)
            ],
        )


class NodesOpen:
    """An engine over nodes of which none has come, with a launcher that asks it for news."""

    def __init__(self) -> None:
        self.engine, _ = open_nodes({})
        self.notices: list[MachineNotice] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self.engine.close()

    def _run(self) -> None:
        while not self._is_over:
            wait_for([self.engine], 0.1)
            self.notices += [one for one in self.engine.poll() if isinstance(one, MachineNotice)]


@pytest.fixture(params=[coordinator, keeper, server, launcher])
def service(request: pytest.FixtureRequest, run_dir: Path) -> Iterator[Service]:
    with request.param(run_dir) as found:
        yield found


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_proxy_that_decrypts_is_refused_and_named(service: Service) -> None:
    """To whoever connects, and by whoever listens: in the record, once, with the host that it came from."""
    with Interceptor(service.address, decrypts=True) as proxy:
        for _ in range(2):
            with pytest.raises(Refused, match="somebody in between decrypts this connection"):
                service.connect(proxy.address)
        assert any(purpose in proxy.heard for purpose in (b"keeper", b"control", SERVER_PURPOSE, AGENT_PURPOSE)), (
            "it did decrypt"
        )
    wait_until(lambda: bool(service.interceptions()), "the listener tells")
    service.connect(service.address).close()
    assert service.interceptions() == ["127.0.0.1"]


def test_whoever_plays_a_recorded_listener_is_not_taken_for_it(service: Service) -> None:
    """A connector hears the listener's opening before it says anything: also an old one, with all that followed."""
    with Interceptor(service.address) as tap:
        service.connect(tap.address).close()
    with Player(bytes(tap.raw_answers)) as player, pytest.raises((Refused, AddressUnavailable, OSError)):
        service.connect(player.address)
    assert not service.interceptions()


def test_a_proxy_that_rewrites_an_answer_is_noticed(run_dir: Path) -> None:
    """What once ran a command on the machine that joined: a `Welcome` that named another script."""
    with coordinator(run_dir) as service:
        said: list[bytes] = []  # by the coordinator: its opening, its part of TLS, its proof, then its welcome

        def change(data: bytes, from_connector: bool) -> bytes:
            if from_connector:
                return data
            said.append(data)
            return data if len(said) < 4 else data[:-1] + bytes([data[-1] ^ 1])

        with Interceptor(service.address, change=change) as proxy:
            with pytest.raises(AddressUnavailable, match="not what was sent"):
                service.connect(proxy.address)
            assert b"script" not in proxy.heard and b"Welcome" not in proxy.heard


def test_a_proxy_between_two_workers_is_refused_and_named() -> None:
    listeners = [PeerListener("127.0.0.1", TOKEN) for _ in range(2)]
    told: list[str] = []
    listeners[0].on_interception = told.append
    try:
        with Interceptor(listeners[0].address, decrypts=True) as proxy:
            seen = [
                generation_of([listeners[0].address, listeners[1].address]),
                generation_of([proxy.address, listeners[1].address]),
            ]
            lost, refused = in_threads(
                *(
                    lambda rank=rank: connect_mesh(listeners[rank], seen[rank], rank, 20.0 if rank else 5.0)
                    for rank in range(2)
                )
            )
        assert isinstance(refused, Refused) and "somebody in between" in str(refused)
        assert str(proxy.address) in str(refused)
        assert isinstance(lost, PeerLost)
        wait_until(lambda: told == ["127.0.0.1"], "the listener tells, once")
    finally:
        for listener in listeners:
            listener.close()
