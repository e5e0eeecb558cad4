"""Somebody between two processes of a job, on every kind of connection: named and refused, and nothing is gained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.errors import AddressUnavailable, PeerLost, Refused
from shoal.membership.watcher import WatcherClient
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Address
from support.collectives import PATIENCE, TOKEN, generation_of, in_threads
from support.encryption import insisting_on_tls
from support.interception import Interceptor
from support.membership_job import Job
from support.server_groups import TOKEN as GROUP_TOKEN
from support.server_groups import group_of


@pytest.fixture(autouse=True)
def far_away() -> Iterator[None]:
    """Connections that this process makes and takes are encrypted, as those to another machine are."""
    with insisting_on_tls():
        yield


@contextmanager
def coordinator(run_dir: Path) -> Iterator[tuple[Address, Callable[[Address], object]]]:
    with Job(run_dir, workers=1) as job:

        def connect(address: Address) -> WatcherClient:
            return WatcherClient.connect(address, job.token, timeout=PATIENCE, is_launcher=False)

        yield job.address, connect


@contextmanager
def keeper(_: Path) -> Iterator[tuple[Address, Callable[[Address], object]]]:
    with group_of(1) as group:
        yield group.keeper.address, lambda address: KeeperClient(address, GROUP_TOKEN)


@pytest.fixture(params=[coordinator, keeper])
def service(request: pytest.FixtureRequest, run_dir: Path) -> Iterator[tuple[Address, Callable[[Address], object]]]:
    with request.param(run_dir) as found:
        yield found


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_proxy_that_decrypts_is_refused_and_named(service: tuple[Address, Callable[[Address], object]]) -> None:
    address, connect = service
    with Interceptor(address, decrypts=True) as proxy:
        with pytest.raises(Refused, match="somebody in between decrypts this connection"):
            connect(proxy.address)
        assert b"keeper" in proxy.heard or b"control" in proxy.heard, "it did decrypt"
    connect(address).close()  # type: ignore[attr-defined]  # both kinds have it


def test_a_proxy_that_rewrites_an_answer_is_noticed(run_dir: Path) -> None:
    """What once ran a command on the machine that joined: a `Welcome` that named another script."""
    with coordinator(run_dir) as (address, connect):
        said: list[bytes] = []  # by the coordinator: its opening, its part of TLS, its proof, then its welcome

        def change(data: bytes, from_connector: bool) -> bytes:
            if from_connector:
                return data
            said.append(data)
            return data if len(said) < 4 else data[:-1] + bytes([data[-1] ^ 1])

        with Interceptor(address, change=change) as proxy:
            with pytest.raises(AddressUnavailable, match="not what was sent"):
                connect(proxy.address)
            assert b"script" not in proxy.heard and b"Welcome" not in proxy.heard


def test_a_proxy_between_two_workers_is_refused_and_named() -> None:
    listeners = [PeerListener("127.0.0.1", TOKEN) for _ in range(2)]
    try:
        with Interceptor(listeners[0].address, decrypts=True) as proxy:
            seen = [
                generation_of([listeners[0].address, listeners[1].address]),
                generation_of([proxy.address, listeners[1].address]),
            ]
            lost, refused = in_threads(
                *(
                    lambda rank=rank: connect_mesh(listeners[rank], seen[rank], rank, TOKEN, 20.0 if rank else 5.0)
                    for rank in range(2)
                )
            )
        assert isinstance(refused, Refused) and "somebody in between" in str(refused)
        assert str(proxy.address) in str(refused)
        assert isinstance(lost, PeerLost)
    finally:
        for listener in listeners:
            listener.close()
