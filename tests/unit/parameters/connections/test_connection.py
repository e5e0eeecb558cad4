"""Connections of a server group: notes arrive whole and in order, payloads in their memory, strangers get nowhere."""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import typing
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import WireError
from shoal.parameters.connections import connection as module
from shoal.parameters.connections import switchboard
from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.large_bodies import LargeBodies
from shoal.parameters.connections.note_reader import BUFFER_BYTES, NoteReader
from shoal.parameters.connections.purposes import SERVER_PURPOSE, job_purpose
from shoal.parameters.connections.switchboard import Switchboard
from shoal.transport.connection.handshake import Key
from shoal.values import Address
from shoal.wire.keeper_messages import CloseSpace, Filled
from shoal.wire.note_frames import encode_note
from shoal.wire.parameter_messages import AnyNote, KeyList, Refusal, Relay
from support import random_messages

TOKEN = secrets.token_hex(8)
KEY = Key(job_purpose("one"), TOKEN)
KEYS = (Key(SERVER_PURPOSE, "of the group"), KEY)


class Ear:
    """Hears and keeps everything."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.notes: list[tuple[AnyNote, bytes | None]] = []
        self.reasons: list[str] = []
        self.refuses = False

    def proved(self, connection: Connection) -> None:
        self.connections.append(connection)

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        return None if self.refuses else memoryview(bytearray(size))

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None:
        self.notes.append((note, None if payload is None else bytes(payload)))

    def closed(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)


class Pair:
    """A listener and whoever connects to it, turned by one switchboard."""

    def __init__(self) -> None:
        self.board = Switchboard()
        self.here, self.there = Ear(), Ear()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.board.watch(self._listener, self._accept)
        self.accepted: list[Connection] = []

    def _accept(self) -> None:
        endpoint, _ = self._listener.accept()
        self.accepted.append(Connection.accepted(endpoint, lambda: KEYS, self.there))
        self.board.add(self.accepted[-1])

    def connect(self, key: Key = KEY) -> Connection:
        made = Connection.connecting(self.address, key, self.here)
        self.board.add(made)
        return made

    def until(self, condition: object, turns: int = 2000) -> None:
        assert callable(condition)
        for _ in range(turns):
            if condition():
                return
            self.board.turn(0.05)
        raise AssertionError("it never happened")

    def close(self) -> None:
        self.board.unwatch(self._listener)
        self.board.close()
        self._listener.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    with contextlib.closing(made):
        yield made


def test_notes_sent_before_the_proof_arrive_after_it_in_order(pair: Pair) -> None:
    mine = pair.connect()
    for number in range(100):
        mine.send(Filled(view=number))
    pair.until(lambda: len(pair.there.notes) == 100)
    assert [note for note, _ in pair.there.notes] == [Filled(view=number) for number in range(100)]
    assert pair.accepted[0].purpose == KEY.purpose
    assert mine.bytes_out == pair.accepted[0].bytes_in


def test_large_payloads_cross_both_ways_at_once(pair: Pair) -> None:
    mine = pair.connect()
    pair.until(lambda: pair.there.connections and pair.here.connections)
    payloads = [secrets.token_bytes(size) for size in (0, 1, BUFFER_BYTES, 5_000_000, 20_000_000)]
    for number, payload in enumerate(payloads):
        mine.send(Relay(generation=number, peer=0), payload)
        pair.accepted[0].send(Relay(generation=number, peer=1), payload)
    pair.until(lambda: len(pair.there.notes) == len(pair.here.notes) == len(payloads))
    assert [payload for _, payload in pair.there.notes] == payloads
    assert [payload for _, payload in pair.here.notes] == payloads
    assert mine.unsent == 0


def test_memory_of_a_payload_may_change_once_it_is_detached(pair: Pair) -> None:
    mine = pair.connect()
    pair.until(lambda: pair.there.connections and pair.here.connections)
    memory = bytearray(b"a" * 30_000_000)
    mine.send(Relay(generation=1, peer=0), memoryview(memory), key="unit")
    mine.flush()
    assert mine.unsent  # the kernel does not take as much
    mine.detach("unit")
    memory[:] = b"b" * len(memory)
    pair.until(lambda: pair.there.notes)
    assert pair.there.notes[0][1] == b"a" * len(memory)


def test_a_refused_payload_is_skipped_and_the_next_note_is_read(pair: Pair) -> None:
    pair.there.refuses = True
    mine = pair.connect()
    mine.send(Relay(generation=1, peer=0), bytes(3_000_000))
    mine.send(Filled(view=7))
    pair.until(lambda: len(pair.there.notes) == 2)
    assert pair.there.notes == [(Relay(generation=1, peer=0), None), (Filled(view=7), b"")]


def test_a_wrong_token_is_refused_and_told_so(pair: Pair) -> None:
    mine = pair.connect(Key(KEY.purpose, "another"))
    pair.until(lambda: pair.here.reasons)
    assert mine.was_refused
    assert "wrong token" in pair.here.reasons[0]
    assert not pair.there.connections
    pair.until(lambda: pair.accepted[0].is_closed)


def test_a_job_that_is_not_known_is_refused(pair: Pair) -> None:
    pair.connect(Key(job_purpose("another"), TOKEN))
    pair.until(lambda: pair.here.reasons)
    assert not pair.there.connections


def test_a_listener_without_the_token_is_not_believed(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        made = Connection.connecting(Address("127.0.0.1", impostor.getsockname()[1]), KEY, pair.here)
        pair.board.add(made)
        made.send(Filled(view=1))
        endpoint, _ = impostor.accept()
        with endpoint:
            endpoint.sendall(secrets.token_bytes(64))
            pair.until(lambda: pair.here.reasons)
    assert "could not prove" in pair.here.reasons[0]
    assert not pair.here.connections


def test_garbage_after_the_proof_closes_the_connection_and_says_why(pair: Pair) -> None:
    mine = pair.connect()
    pair.until(lambda: pair.there.connections and pair.here.connections)
    mine.endpoint.send(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    pair.until(lambda: pair.there.reasons)
    assert "not Shoal's" in pair.there.reasons[0]
    pair.until(lambda: pair.here.reasons)  # and the other end sees it closed, and why
    assert isinstance(refusal := pair.here.notes[0][0], Refusal)
    assert refusal.reason == pair.there.reasons[0]


def test_a_closed_end_is_heard_of_once_at_the_other_only(pair: Pair) -> None:
    mine = pair.connect()
    pair.until(lambda: pair.there.connections and pair.here.connections)
    mine.send(Filled(view=1))
    mine.end()
    pair.until(lambda: pair.there.reasons)
    assert pair.there.notes == [(Filled(view=1), b"")]  # what was sent before arrives
    pair.board.turn(0.01)
    assert len(pair.there.reasons) == 1
    assert not pair.here.reasons


@pytest.mark.parametrize("is_sending", [False, True])
def test_an_end_that_dies_with_bytes_unread_has_closed_the_connection_too(pair: Pair, is_sending: bool) -> None:
    mine = pair.connect()
    pair.until(lambda: pair.there.connections and pair.here.connections)
    mine.endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets it
    mine.close()
    if is_sending:
        pair.accepted[0].send(Relay(generation=1, peer=0), bytes(30_000_000))
    pair.until(lambda: pair.there.reasons)
    assert pair.there.reasons[0].startswith("it closed the connection: ")


def test_nobody_listening_is_heard_of(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = Address("127.0.0.1", gone.getsockname()[1])
    pair.board.add(Connection.connecting(address, KEY, pair.here))
    pair.until(lambda: pair.here.reasons)
    assert "refused" in pair.here.reasons[0]


def test_an_end_that_never_reads_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_NOTES", 1000)
    mine = pair.connect()
    pair.until(lambda: pair.there.connections and pair.here.connections)
    for number in range(200):  # nobody turns meanwhile
        mine.send(CloseSpace(request=number, job="one"))
    assert mine.is_closed
    assert "not read" in pair.here.reasons[0]


def test_a_client_that_only_asks_is_not_read_while_it_does_not_listen(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_BYTES", 1_000_000)
    mine = pair.connect()
    pair.until(lambda: pair.there.connections and pair.here.connections)
    server = pair.accepted[0]
    server.pauses = True
    server.send(Relay(generation=1, peer=0), bytes(40_000_000))
    server.flush()
    mine.send(Filled(view=1))
    mine.flush()
    server.receive()
    assert not pair.there.notes
    pair.until(lambda: pair.there.notes and pair.here.notes)  # it listens again


# The reader of the stream


NOTES = st.one_of(
    st.builds(lambda note: (note, b""), random_messages.messages(*typing.get_args(AnyNote))),
    st.builds(lambda payload: (Relay(generation=1, peer=2), payload), st.binary(max_size=300)),
    st.builds(lambda blocks: (KeyList(digest=b"d", blocks=tuple(blocks)), b""), st.lists(st.integers(0, 2**31 - 1))),
)


@given(st.lists(NOTES, max_size=12), st.lists(st.integers(1, 200), min_size=1))
def test_however_a_stream_is_cut_the_same_notes_come_out(notes: list[tuple[AnyNote, bytes]], sizes: list[int]) -> None:
    stream = b"".join(encode_note(note, len(payload)) + payload for note, payload in notes)
    heard: list[tuple[AnyNote, bytes]] = []
    reader = NoteReader(
        lambda _, size: memoryview(bytearray(size)), lambda note, payload: heard.append((note, bytes(payload or b"")))
    )
    turn = 0
    while stream:
        target = reader.target()
        count = min(len(target), len(stream), sizes[turn % len(sizes)])
        assert count > 0
        target[:count] = stream[:count]
        reader.took(count)
        stream = stream[count:]
        turn += 1
    assert heard == notes


def test_a_body_larger_than_the_buffer_is_read() -> None:
    heard: list[AnyNote] = []
    reader = NoteReader(lambda _, size: memoryview(bytearray(size)), lambda note, _: heard.append(note))
    note = KeyList(digest=b"d", blocks=tuple(range(100_000)))
    stream = encode_note(note) + encode_note(Filled(view=3))
    while stream:
        target = reader.target()
        count = min(len(target), len(stream))
        target[:count] = stream[:count]
        reader.took(count)
        stream = stream[count:]
    assert heard == [note, Filled(view=3)]


def test_memory_of_another_size_than_announced_is_an_error() -> None:
    reader = NoteReader(lambda *_: memoryview(bytearray(10)), lambda *_: None)
    data = encode_note(Relay(generation=1, peer=1), 11)
    reader.target()[: len(data)] = data
    with pytest.raises(WireError, match="11 bytes"):
        reader.took(len(data))


def test_a_reader_whose_time_is_up_hands_over_one_note_at_a_time() -> None:
    heard: list[AnyNote] = []
    reader = NoteReader(lambda _, size: memoryview(bytearray(size)), lambda note, _: heard.append(note))
    stream = b"".join(encode_note(Relay(generation=1, peer=number)) for number in range(3))
    reader.target()[: len(stream)] = stream
    reader.took(len(stream), until=0.0)
    for count in (1, 2, 3):
        assert (len(heard), reader.is_paused) == (count, True)
        reader.go_on(until=0.0)
    assert (len(heard), reader.is_paused) == (3, False)
    assert [note.peer for note in heard if isinstance(note, Relay)] == [0, 1, 2]


def said(pair: Pair, generation: int) -> int:
    """Notes that were heard of a connection that speaks of this generation."""
    return sum(isinstance(note, Relay) and note.generation == generation for note, _ in pair.there.notes)


def test_who_says_very_much_does_not_keep_others_from_being_heard(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "SLICE_SECONDS", 0.0)
    talker, other = pair.connect(), pair.connect()
    pair.until(lambda: len(pair.there.connections) == 2 and len(pair.here.connections) == 2)
    for number in range(500):
        talker.send(Relay(generation=1, peer=number))
    other.send(Relay(generation=2, peer=0))
    pair.until(lambda: said(pair, 2))
    assert said(pair, 1) < 400
    pair.until(lambda: said(pair, 1) == 500)


def test_a_party_of_many_has_no_more_time_than_one_of_few(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(switchboard, "PARTY_SECONDS", 0.0)  # each has one connection's say in a turn
    crowd = [pair.connect() for _ in range(8)]
    pair.until(lambda: len(pair.there.connections) == 8 and len(pair.here.connections) == 8)
    for connection in pair.there.connections:
        connection.party = "crowd"
    one = pair.connect()
    pair.until(lambda: len(pair.there.connections) == 9 and len(pair.here.connections) == 9)
    pair.there.connections[-1].party = "one"
    for number in range(50):
        for talker in crowd:
            talker.send(Relay(generation=1, peer=number))
        one.send(Relay(generation=2, peer=number))
    pair.until(lambda: said(pair, 2) == 50)
    assert said(pair, 1) < 300
    pair.until(lambda: said(pair, 1) == 400)


def test_large_bodies_of_one_job_take_turns_in_memory(pair: Pair) -> None:
    bodies = LargeBodies(300_000)
    talkers = [pair.connect() for _ in range(5)]
    pair.until(lambda: len(pair.there.connections) == 5 and len(pair.here.connections) == 5)
    for connection in pair.there.connections:
        connection.bodies = bodies
        connection.expect(1 << 20)
    large = KeyList(digest=b"d", blocks=tuple(range(2**20, 2**20 + 40_000)))  # 200 kB each
    for talker in talkers:
        talker.send(large)
        talker.send(Relay(generation=1, peer=0))
    pair.until(lambda: len(pair.there.notes) == 10)
    assert sum(note == large for note, _ in pair.there.notes) == 5
    assert not pair.there.reasons


def test_whoever_has_not_said_who_it_is_says_nothing_long(pair: Pair) -> None:
    mine = pair.connect()
    mine.send(KeyList(digest=b"d", blocks=tuple(range(2**20, 2**20 + 40_000))))
    pair.until(lambda: mine.is_closed)
    assert any(isinstance(note, Refusal) and "at most 65536 are expected" in note.reason for note, _ in pair.here.notes)
