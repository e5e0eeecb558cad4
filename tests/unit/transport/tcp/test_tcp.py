"""Meshes come about between the right processes only, and nobody else can hold them up."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from shoal.errors import Aborted, AddressUnavailable, PeerLost, Refused, UsageError
from shoal.transport.connection import strangers
from shoal.transport.connection.handshake import OPENING_BYTES, ConnectorHandshake, Key
from shoal.transport.connection.strangers import MOST
from shoal.transport.tcp.tcp import PeerListener, TcpMesh, connect_mesh
from shoal.transport.tcp.tcp_handshake import PeerHello
from shoal.values import Address, Unreached
from support.collectives import PATIENCE, TOKEN, generation_of, in_threads, succeed
from support.flood import flood


class Workers:
    """Listeners of several ranks, and their meshes; everything is closed at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listeners: list[PeerListener] = []

    def listen(self, count: int, token: str = TOKEN) -> None:
        for _ in range(count):
            listener = PeerListener("127.0.0.1", token)
            self._stack.callback(listener.close)
            self.listeners.append(listener)

    def connect(self, rank: int, number: int = 1, timeout: float = PATIENCE) -> TcpMesh:
        generation = generation_of([listener.address for listener in self.listeners], number)
        mesh = connect_mesh(self.listeners[rank], generation, rank, timeout)
        self._stack.callback(mesh.close)
        return mesh

    def knock(self, rank: int) -> socket.socket:
        """A stranger's connection."""
        address = self.listeners[rank].address
        return self._stack.enter_context(socket.create_connection((address.host, address.port), PATIENCE))


@pytest.fixture
def workers() -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(stack)


def _raise_end() -> None:
    raise EOFError


def greet(source: TcpMesh, target: TcpMesh) -> None:
    source.post(target.rank, b"hello", memoryview(b""))
    buffer = bytearray(5)
    target.receive_into(source.rank, memoryview(buffer))
    assert buffer == b"hello"


def test_every_pair_is_connected(workers: Workers) -> None:
    workers.listen(5)
    ends = succeed(*(lambda rank=rank: workers.connect(rank) for rank in range(5)))
    for source in ends:
        for target in ends:
            if source is not target:
                greet(source, target)


def test_strangers_garbage_and_silence_neither_get_in_nor_delay(workers: Workers) -> None:
    workers.listen(2)
    silent, hung_up, garbage, forged = (workers.knock(0) for _ in range(4))
    hung_up.close()
    garbage.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" + b"x" * 200)
    hello = PeerHello(generation=1, source=1, target=0)
    forger = ConnectorHandshake(Key(hello.purpose, "another token"))
    forger.open(insists=False)
    forged.sendall(forger.take(forged.recv(OPENING_BYTES, socket.MSG_WAITALL)).send)
    ends = succeed(lambda: workers.connect(0), lambda: workers.connect(1))
    greet(ends[1], ends[0])
    silent.settimeout(PATIENCE)
    assert len(silent.recv(100)) == OPENING_BYTES  # all it ever hears
    for stranger in (garbage, forged):
        stranger.settimeout(PATIENCE)
        with pytest.raises((ConnectionError, EOFError)):
            while stranger.recv(100):
                pass
            raise EOFError


def test_a_flood_of_silent_connections_does_not_keep_a_peer_out(workers: Workers) -> None:
    workers.listen(2)
    for _ in range(MOST + 20):
        workers.knock(0)
    ends = succeed(lambda: workers.connect(0), lambda: workers.connect(1))
    greet(ends[1], ends[0])


def test_strangers_on_a_peer_port_are_closed_when_their_time_is_up(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.listen(1)
    monkeypatch.setattr(strangers, "SECONDS", 0.2)
    silent, slow = workers.knock(0), workers.knock(0)
    slow.sendall(b"SHPR")
    for stranger in (silent, slow):
        assert len(stranger.recv(100)) == OPENING_BYTES
        with pytest.raises((ConnectionError, EOFError)):
            stranger.recv(1) or _raise_end()


def test_a_flood_on_a_peer_port_leaves_only_so_many_open(workers: Workers) -> None:
    workers.listen(2)
    before = psutil.Process().num_fds()
    with flood(workers.listeners[0].address, 600) as silent:
        assert psutil.Process().num_fds() <= before + MOST + 16
        assert silent.still_open() <= MOST + 16
        ends = succeed(lambda: workers.connect(0), lambda: workers.connect(1))
        greet(ends[1], ends[0])


def test_a_peer_gets_in_when_a_process_without_a_descriptor_has_one_again(workers: Workers) -> None:
    workers.listen(2)
    silent = workers.knock(0)
    assert silent.recv(100)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [workers.knock(0) for _ in range(2)]
    [stranger.recv(100) for stranger in waiting]
    free = os.dup(0)
    os.close(free)  # the number that the next one would get
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
    try:
        late = socket.socket()  # the last descriptor
        late.connect((workers.listeners[0].address.host, workers.listeners[0].address.port))
        with late:
            late.settimeout(PATIENCE)
            assert len(late.recv(100)) == OPENING_BYTES, "the oldest stranger makes room"
        silent.settimeout(PATIENCE)
        assert silent.recv(1) == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    ends = succeed(lambda: workers.connect(0), lambda: workers.connect(1))
    greet(ends[1], ends[0])


def test_a_peer_with_another_token_is_kept_out(workers: Workers) -> None:
    workers.listen(1)
    workers.listen(1, token="another")
    errors = in_threads(lambda: workers.connect(0, timeout=1.0), lambda: workers.connect(1, timeout=1.0))
    assert [type(error) for error in errors] == [PeerLost, PeerLost]
    assert "another token" in str(errors[1])


def test_a_listener_that_cannot_prove_itself_is_refused(workers: Workers) -> None:
    workers.listen(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(PATIENCE)
                connection.sendall(bytes(OPENING_BYTES))
                assert not connection.recv(1)

        generation = generation_of([Address(*listener.getsockname()), workers.listeners[0].address])
        error = in_threads(lambda: connect_mesh(workers.listeners[0], generation, 1, PATIENCE), impostor)[0]
    assert isinstance(error, Refused)
    assert "rank 0" in str(error)


def test_a_connection_for_a_later_generation_waits_until_its_time(workers: Workers) -> None:
    """Rank 2 is already in generation 2 while ranks 0 and 1 still form generation 1 without it."""
    workers.listen(3)
    later = threading.Thread(target=lambda: results.append(workers.connect(2, number=2)))
    results: list[TcpMesh] = []
    later.start()
    first = generation_of([listener.address for listener in workers.listeners[:2]])

    def both(rank: int) -> TcpMesh:
        time.sleep(0.1)  # so that the early one is met while generation 1 forms
        connect_mesh(workers.listeners[rank], first, rank, PATIENCE).close()
        return workers.connect(rank, number=2)

    ends = succeed(lambda: both(0), lambda: both(1))
    later.join(PATIENCE)
    greet(results[0], ends[0])
    greet(ends[1], results[0])


def test_connections_of_older_generations_are_dropped(workers: Workers) -> None:
    workers.listen(2)
    errors = in_threads(lambda: workers.connect(0, number=2, timeout=1.0), lambda: workers.connect(1, timeout=1.0))
    assert isinstance(errors[1], PeerLost)
    assert "generation 1" in str(errors[1])


def test_a_peer_that_is_gone_is_tried_until_time_is_up_and_named_with_the_reason(workers: Workers) -> None:
    workers.listen(2)
    workers.listeners[0].close()
    with pytest.raises(PeerLost, match=r"rank 0 \(worker 0 at 127\.0\.0\.1:.* refused, for 0.3 s") as error:
        workers.connect(1, timeout=0.3)
    assert error.value.peer == 0


def test_a_peer_that_could_not_be_reached_at_first_is_reached_later(workers: Workers) -> None:
    workers.listen(2)
    workers.listeners[1].faults.cut(0, 0.3)
    ends = succeed(lambda: workers.connect(0), lambda: workers.connect(1))
    greet(ends[1], ends[0])


def test_a_peer_that_gives_up_because_of_another_is_not_the_one_that_is_named(workers: Workers) -> None:
    """Rank 2 never comes; rank 1 gives up first, and rank 0 must not take that for an unreachable rank 1."""
    workers.listen(3)
    errors = in_threads(lambda: workers.connect(0), lambda: workers.connect(1, timeout=1.0))
    assert [type(error) for error in errors] == [PeerLost, PeerLost]
    assert errors[1].peer == 2
    assert errors[0].peer is None
    assert "rank 1 gave up" in str(errors[0])


def test_a_peer_that_dies_while_others_are_awaited_is_named(workers: Workers) -> None:
    workers.listen(3)

    def come_and_go() -> None:
        generation = generation_of([listener.address for listener in workers.listeners[:2]])
        connect_mesh(workers.listeners[1], generation, 1, PATIENCE).close_in_child()  # without a word

    error = in_threads(lambda: workers.connect(0), come_and_go)[0]
    assert isinstance(error, PeerLost)
    assert error.peer == 1


def test_a_peer_that_never_comes_is_named_after_the_time_given(workers: Workers) -> None:
    workers.listen(3)
    with pytest.raises(PeerLost, match=r"ranks \[1, 2\] did not connect within 0.1 s") as error:
        workers.connect(0, timeout=0.1)
    assert error.value.peer == 1


@pytest.mark.parametrize(("rank", "late"), [(0, (2, 3)), (3, (0, 2))], ids=["waits for them", "connects to them"])
def test_all_that_did_not_come_are_named_and_those_that_answer_are_told_apart(
    workers: Workers, rank: int, late: tuple[int, ...]
) -> None:
    workers.listen(4)
    workers.listeners[1].close()  # nobody listens there any more; the others do, and do not connect
    with pytest.raises(PeerLost) as error:
        workers.connect(rank, timeout=0.5)
    assert error.value.unreached == Unreached(unreachable=(1,), late=late)


@contextmanager
def silent_address() -> Iterator[Address]:
    """Whoever connects there gets no answer: the kernel drops what it has no room for."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(2):
            fill = stack.enter_context(socket.socket())
            fill.setblocking(False)
            fill.connect_ex(full.getsockname())
        yield Address(*full.getsockname())


def test_who_is_left_alone_finds_out_about_its_own_peers_before_it_gives_up(workers: Workers) -> None:
    """Rank 1's time is over first. Rank 0 cannot say yet whether rank 2 answers, and does not blame rank 1."""
    workers.listen(2)
    with silent_address() as silent:
        generation = generation_of([*(listener.address for listener in workers.listeners), silent])
        errors = in_threads(
            lambda: connect_mesh(workers.listeners[0], generation, 0, 1.5),
            lambda: connect_mesh(workers.listeners[1], generation, 1, 0.5),
        )
    assert [type(error) for error in errors] == [PeerLost, PeerLost]
    assert [error.unreached for error in errors] == [Unreached(unreachable=(2,))] * 2


def test_giving_up_a_generation_ends_waiting_for_it_but_not_for_the_next(workers: Workers) -> None:
    workers.listen(2)

    def give_up() -> None:
        time.sleep(0.05)
        workers.listeners[0].give_up(1, "rank 1 died")

    _, error = in_threads(give_up, lambda: workers.connect(0))
    assert isinstance(error, Aborted)
    assert str(error) == "rank 1 died"
    with pytest.raises(Aborted, match="rank 1 died"):
        workers.connect(0)
    succeed(lambda: workers.connect(0, number=2), lambda: workers.connect(1, number=2))


def test_listening_beyond_this_machine_needs_a_token() -> None:
    with pytest.raises(UsageError, match="without a token"):
        PeerListener("192.0.2.1", "")
    PeerListener("127.0.0.1", "").close()


def test_an_address_that_peers_cannot_use_is_refused() -> None:
    for host in ("0.0.0.0", "::", ""):
        with pytest.raises(UsageError, match="peers cannot connect"):
            PeerListener(host, TOKEN)
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(AddressUnavailable, match=host):
            PeerListener(host, TOKEN)


def test_ipv6_works_where_the_machine_has_it() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with ExitStack() as stack:
        workers = Workers(stack)
        for _ in range(2):
            listener = PeerListener("::1", TOKEN)
            stack.callback(listener.close)
            workers.listeners.append(listener)
        assert workers.listeners[0].address.host == "::1"
        ends = succeed(lambda: workers.connect(0), lambda: workers.connect(1))
        greet(ends[0], ends[1])
