"""Connections over real sockets, plain and through TLS: the same bytes, the same ends; and somebody in between."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from shoal.environment import in_plaintext
from shoal.errors import WireError
from shoal.transport.connection import introduction
from shoal.transport.connection.endpoint import ALL, Endpoint, insists_on_tls
from shoal.transport.connection.handshake import (
    CLAIM_BYTES,
    MAGIC,
    OPENING_BYTES,
    REFUSAL,
    ConnectorHandshake,
    Distrust,
    Key,
    ListenerHandshake,
    Untrusted,
)
from shoal.transport.connection.introduction import Introduction
from shoal.transport.connection.tls import TlsEndpoint
from shoal.values import Address
from support.interception import Interceptor, Player, unchanged, without_insistence

KEY = Key(b"control", "a secret of nobody else")
PATIENCE = 30.0  # seconds
WORDS = b"what only the two of them may read, and nobody else at all"


class Listener:
    """Introduces itself to one connection, in a thread; then `endpoint` is there, or `failure`."""

    def __init__(self, secret: str = KEY.secret) -> None:
        self.endpoint: Endpoint | None = None
        self.failure: Exception | None = None
        self.was_refused = False
        self._secret = secret
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        connection.settimeout(PATIENCE)
        handshake = ListenerHandshake({KEY.purpose: self._secret}.get)
        met = Introduction(connection, handshake)
        try:
            if met.advance():
                self.endpoint = met.welcome()
                return
            self.was_refused = met.was_refused
        except (OSError, WireError) as failure:
            self.failure = failure
        met.endpoint.close()

    def join(self) -> Endpoint | None:
        self._thread.join()
        self._socket.close()
        return self.endpoint


def connect(address: Address, key: Key = KEY) -> Endpoint:
    connection = socket.create_connection((address.host, address.port), PATIENCE)
    met = Introduction(connection, ConnectorHandshake(key))
    try:
        assert met.advance()
    except BaseException:
        met.endpoint.close()
        raise
    return met.endpoint


@dataclass
class Pair:
    connector: Endpoint
    listener: Endpoint


@pytest.fixture(params=["plain", "tls"])
def is_tls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "tls":
        insist(monkeypatch)
    return request.param == "tls"


def insist(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the other end were on another machine."""
    monkeypatch.setattr(introduction, "insists_on_tls", lambda _family, _host: True)


@contextlib.contextmanager
def connected(through: Callable[[Address], Interceptor] | None = None) -> Iterator[Pair]:
    listener = Listener()
    with contextlib.ExitStack() as stack:
        address = listener.address
        if through is not None:
            address = stack.enter_context(through(address)).address
        connector = connect(address)
        other = listener.join()
        assert other is not None
        try:
            yield Pair(connector, other)
        finally:
            connector.close()
            other.close()


@pytest.fixture
def pair(is_tls: bool) -> Iterator[Pair]:
    with connected() as found:
        assert isinstance(found.connector, TlsEndpoint) == isinstance(found.listener, TlsEndpoint) == is_tls
        yield found


def exactly(endpoint: Endpoint, size: int) -> bytes:
    data = bytearray(size)
    got = 0
    while got < size:
        count = endpoint.recv_into(memoryview(data)[got:])
        assert count, f"the end after {got} of {size} bytes"
        got += count
    return bytes(data)


def test_bytes_cross_both_ways_while_both_ends_wait(pair: Pair) -> None:
    large = bytes(range(256)) * 4096
    for one, other in ((pair.connector, pair.listener), (pair.listener, pair.connector)):
        sending = threading.Thread(target=one.sendall, args=(large,))
        sending.start()
        assert exactly(other, len(large)) == large
        sending.join()


def test_two_ends_that_both_send_much_and_never_block_do_not_hold_each_other_up(pair: Pair) -> None:
    data = [memoryview(bytes([number % 251]) * (37 + 4099 * number)) for number in range(40)]
    whole = b"".join(data)
    ends = (pair.connector, pair.listener)
    left: list[list[memoryview]] = [list(data), list(data)]
    came = [bytearray(), bytearray()]
    room = memoryview(bytearray(100_000))
    for end in ends:
        end.setblocking(False)
    while any(left) or any(len(each) < len(whole) for each in came):
        masks = [select.POLLIN | (select.POLLOUT if left[at] else 0) for at in (0, 1)]
        poll = select.poll()
        for end, mask in zip(ends, masks, strict=True):
            poll.register(end, mask)
        ready = dict(poll.poll(1000 * PATIENCE))
        assert ready
        for at, end in enumerate(ends):
            with contextlib.suppress(BlockingIOError):
                while left[at]:
                    sent = end.sendmsg(left[at][:16])
                    while sent:
                        taken = min(sent, len(left[at][0]))
                        sent -= taken
                        left[at][0] = left[at][0][taken:]
                        if not left[at][0]:
                            left[at].pop(0)
            with contextlib.suppress(BlockingIOError):
                while (count := end.recv_into(room)) == len(room):
                    came[at] += room
                came[at] += room[:count]
    assert came == [whole, whole]


def test_a_sender_hears_that_the_last_byte_has_not_left_until_it_has(pair: Pair) -> None:
    pair.connector.setblocking(False)
    block = memoryview(bytes(1024 * 1024))
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += pair.connector.sendmsg((block,))
    came, is_whole = 0, False
    last = memoryview(b"\1")
    while came < sent + 1:
        if not is_whole:
            with contextlib.suppress(BlockingIOError):
                is_whole = pair.connector.sendmsg((block[:0], last)) == 1
        came += len(pair.listener.recv(65536))
    assert came == sent + 1 and is_whole


def test_what_was_looked_at_is_still_there(pair: Pair) -> None:
    pair.connector.setblocking(False)
    with pytest.raises(BlockingIOError):
        pair.connector.peek(10)
    pair.listener.sendall(b"head" + bytes(30_000) + b"tail")
    while len(pair.connector.peek(ALL) if readable(pair.connector) else b"") < 30_008:
        pass
    assert pair.connector.peek(4) == b"head"
    assert exactly(pair.connector, 30_008) == b"head" + bytes(30_000) + b"tail"
    pair.listener.sendall(b"last words")
    pair.listener.shutdown(socket.SHUT_WR)
    assert readable(pair.connector, select.POLLRDHUP)
    assert pair.connector.peek(ALL) == b"last words"
    assert exactly(pair.connector, 10) == b"last words"
    assert pair.connector.recv(10) == b"" == pair.connector.peek(10)


def readable(endpoint: Endpoint, mask: int = select.POLLIN) -> bool:
    poll = select.poll()
    poll.register(endpoint, mask)
    return bool(poll.poll(1000 * PATIENCE)) or endpoint.has_more()


def test_bytes_that_the_kernel_does_not_know_of_are_said_to_be_there(pair: Pair, is_tls: bool) -> None:
    pair.listener.sendall(bytes(10_000))
    assert exactly(pair.connector, 1) == b"\0"
    assert pair.connector.has_more() == is_tls
    assert exactly(pair.connector, 9_999) == bytes(9_999)
    assert not pair.connector.has_more()


@pytest.mark.parametrize("secret", ["another", ""])
def test_another_secret_is_refused_at_both_ends(is_tls: bool, secret: str) -> None:
    listener = Listener()
    with pytest.raises(Untrusted) as caught:
        connect(listener.address, Key(KEY.purpose, secret))
    assert caught.value.distrust is Distrust.REFUSED
    assert listener.join() is None and listener.was_refused


# Somebody in between


def test_an_eavesdropper_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    insist(monkeypatch)
    found: list[Interceptor] = []

    def listening_in(address: Address) -> Interceptor:
        found.append(Interceptor(address))
        return found[0]

    with connected(listening_in) as pair:
        for one, other in ((pair.connector, pair.listener), (pair.listener, pair.connector)):
            one.sendall(WORDS)
            assert exactly(other, len(WORDS)) == WORDS
        heard = bytes(found[0].heard)
    assert len(heard) > 2 * len(WORDS), "it heard all of it"
    secrets = (WORDS, KEY.secret.encode(), KEY.purpose)
    assert not any(secret in heard for secret in secrets)


def test_a_proxy_that_decrypts_is_named_and_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    insist(monkeypatch)
    listener = Listener()
    with Interceptor(listener.address, decrypts=True) as proxy:
        with pytest.raises(Untrusted, match="somebody in between") as caught:
            connect(proxy.address)
        assert caught.value.distrust is Distrust.INTERCEPTED
        assert listener.join() is None and listener.was_refused
        assert KEY.purpose in proxy.heard, "it did decrypt"
        assert KEY.secret.encode() not in proxy.heard


def test_a_proxy_that_says_that_nobody_wants_tls_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    insist(monkeypatch)
    listener = Listener()
    with Interceptor(listener.address, change=without_insistence) as proxy:
        with pytest.raises((Untrusted, OSError)):
            connect(proxy.address)
        assert listener.join() is None
        assert not any(secret in proxy.heard for secret in (KEY.secret.encode(), KEY.purpose))


@pytest.mark.parametrize("from_connector", [True, False])
def test_a_proxy_that_rewrites_what_is_said_is_noticed(monkeypatch: pytest.MonkeyPatch, from_connector: bool) -> None:
    insist(monkeypatch)
    armed = threading.Event()

    def change(data: bytes, comes_from_connector: bool) -> bytes:
        if not armed.is_set() or comes_from_connector != from_connector:
            return unchanged(data, comes_from_connector)
        return data[:-1] + bytes([data[-1] ^ 1])

    with connected(lambda address: Interceptor(address, change=change)) as pair:
        armed.set()
        ends = (pair.connector, pair.listener)
        source, target = ends if from_connector else ends[::-1]
        source.sendall(WORDS)
        with pytest.raises(OSError, match="not what was sent") as caught:
            target.recv(len(WORDS))
        assert caught.value.errno == errno.EBADMSG


@pytest.mark.parametrize("insists", [False, True])
def test_a_recording_is_refused_by_whoever_it_is_played_to(monkeypatch: pytest.MonkeyPatch, insists: bool) -> None:
    if insists:
        insist(monkeypatch)
    found: list[Interceptor] = []

    def recording(address: Address) -> Interceptor:
        found.append(Interceptor(address))
        return found[0]

    with connected(recording) as pair:
        pair.connector.sendall(WORDS)
        assert exactly(pair.listener, len(WORDS)) == WORDS
    listener = Listener()
    answer = bytearray()
    again = socket.create_connection((listener.address.host, listener.address.port), PATIENCE)
    with again:
        with contextlib.suppress(OSError):  # the listener may have refused it and closed the connection already
            again.sendall(found[0].raw)
            again.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while data := again.recv(65536):
                answer += data
    assert listener.join() is None
    assert WORDS not in answer
    if not insists:
        assert answer.endswith(REFUSAL)


@pytest.mark.parametrize("insists", [False, True])
def test_a_recording_of_a_listener_deceives_no_connector(monkeypatch: pytest.MonkeyPatch, insists: bool) -> None:
    """The recording begins with an opening that was once a listener's own."""
    if insists:
        insist(monkeypatch)
    found: list[Interceptor] = []

    def recording(address: Address) -> Interceptor:
        found.append(Interceptor(address))
        return found[0]

    with connected(recording) as pair:
        pair.listener.sendall(WORDS)
        assert exactly(pair.connector, len(WORDS)) == WORDS
    with Player(bytes(found[0].raw_answers)) as player, pytest.raises((Untrusted, OSError)) as caught:
        connect(player.address)
    if not insists:
        assert isinstance(caught.value, Untrusted) and caught.value.distrust is Distrust.UNPROVEN


def test_a_claim_that_is_slipped_in_before_tls_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An opening and what follows it come in one packet: nothing of it may be taken for what TLS protects."""
    insist(monkeypatch)
    listener = Listener()
    claim = bytes(CLAIM_BYTES - 2) + len(KEY.purpose).to_bytes(2, "big") + KEY.purpose

    def change(data: bytes, from_connector: bool) -> bytes:
        if from_connector and data.startswith(MAGIC):
            return data[:OPENING_BYTES] + claim + data[OPENING_BYTES:]
        return data

    with Interceptor(listener.address, change=change) as proxy:
        with pytest.raises((Untrusted, OSError)):
            connect(proxy.address)
        assert listener.join() is None and not listener.was_refused, "it was never read as a claim"
        assert "not what was sent" in str(listener.failure)


# Who insists


@pytest.mark.parametrize(
    ("host", "insists"),
    [
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("10.0.0.1", True),
        ("0.0.0.0", True),
        ("fe80::1%eth0", True),
        ("::ffff:10.0.0.1", True),
    ],
)
def test_all_but_loopback_is_encrypted_unless_plaintext_is_wanted(
    monkeypatch: pytest.MonkeyPatch, host: str, insists: bool
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    assert insists_on_tls(family, host) == insists
    assert not insists_on_tls(socket.AF_UNIX, "")
    with in_plaintext(True):
        assert not insists_on_tls(family, host)
    assert insists_on_tls(family, host) == insists
