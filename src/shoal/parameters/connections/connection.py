"""One connection of a server group, which does not block: the handshake on it, then notes both ways.

Used by servers, the keeper and workers alike; a `Switchboard` turns all connections of a thread. Outgoing notes and the
memory of their payloads queue up and leave with as few calls as possible; incoming payloads are received straight into
memory that the owner chooses. Nothing here raises for what the other end does: `Hearer.closed` hears of it, once. Not
here: what notes mean.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from shoal.errors import Refused, WireError
from shoal.parameters.connections.large_bodies import LargeBodies
from shoal.parameters.connections.note_reader import NoteReader
from shoal.transport.connection import name_lookup, near_link, silence
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.handshake import ConnectorHandshake, Key, ListenerHandshake
from shoal.transport.connection.introduction import CLOSED, Introduction, begin_to_connect
from shoal.transport.connection.name_lookup import SocketAddress
from shoal.transport.connection.sending import SendQueue
from shoal.values import Address
from shoal.wire.note import Note
from shoal.wire.note_frames import encode_note
from shoal.wire.parameter_messages import AnyNote, Refusal

TURN_BYTES = 8 * 1024 * 1024  # read from one connection before the others have their turn
LAST_BYTES = 1024 * 1024  # of a connection that is given up, which are read and thrown away
MAX_UNREAD_NOTES = 64 * 1024 * 1024  # bytes of heads and bodies that wait for an end that does not read
FIRST_BODY_BYTES = 64 * 1024  # of whoever has not said yet who it is
GROWING = "growing"  # why it is held
PAUSE_BYTES = 256 * 1024 * 1024  # of output waiting: nothing more is read from an end that only asks (`pauses`)


class Hearer(Protocol):
    """Who owns a connection hears through this what happens on it. Called in `Switchboard.turn` only."""

    def proved(self, connection: Connection) -> None:
        """Both ends hold the token; notes may be sent."""

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        """Where the note's payload goes: exactly `size` writable bytes. None: it is read and thrown away."""

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None:
        """A whole note; `payload` is what `room` gave, or empty where the note has none."""

    def closed(self, connection: Connection, reason: str) -> None:
        """It is gone, not by `close`."""


class _Payload(NamedTuple):
    """Marks memory that its owner may want back: see `Connection.detach`."""

    key: object


class Connection:
    """Made by `accepted` or `connecting`; `Switchboard.add` makes it work."""

    def __init__(self, met: Introduction, hearer: Hearer) -> None:
        self.label: object = None  # the owner's
        self.party: object = None  # whose it is, where several share a thread: see `Switchboard`
        self.bodies: LargeBodies | None = None  # that it shares room for large bodies with others of its party
        self.is_proved = False
        self.is_closed = False
        self.was_refused = False  # the handshake ended so: another token, or a job that is not known there
        self.pauses = False  # read no more requests while much of the output is unsent; never for both ends of one
        self._holders: set[str] = set()  # reasons for which the owner wants nothing read for now
        self.slice_seconds = math.inf  # longest time in one turn for what it says; others have their turn then
        self.bytes_in = 0
        self.bytes_out = 0
        self._hearer = hearer
        self._met = met
        self._queue: SendQueue[_Payload | int] = SendQueue()  # notes are marked with how many bytes they have
        self._unread_notes = 0  # bytes of notes in it
        self._held: list[tuple[Note, memoryview | None, object]] = []  # sent before it was proved
        self._is_ending = False  # close when everything is sent
        self._reader = NoteReader(
            lambda note, size: hearer.room(self, note, size),
            lambda note, payload: hearer.arrived(self, note, payload),
            self,
        )
        self.touched: Callable[[Connection], None] = lambda _: None  # the switchboard's: something to send, or closed

    @classmethod
    def accepted(cls, endpoint: socket.socket, keys: Callable[[], Iterable[Key]], hearer: Hearer) -> Connection:
        """Of a socket that `accept` gave. `OSError`: it is gone already."""
        endpoint.setblocking(False)
        silence.end_when_unacknowledged(endpoint)
        secret_of = lambda purpose: next((key.secret for key in keys() if key.purpose == purpose), None)  # noqa: E731
        met = Introduction(endpoint, ListenerHandshake(secret_of))
        met.open()
        made = cls(met, hearer)
        made.expect(FIRST_BODY_BYTES)
        return made

    @classmethod
    def connecting(cls, address: Address | SocketAddress, key: Key, hearer: Hearer) -> Connection:
        """To whoever listens there. `OSError`: it cannot even be tried. An address by name may take long to find."""
        endpoint = begin_to_connect(name_lookup.find(address) if isinstance(address, Address) else address)
        silence.end_when_unacknowledged(endpoint)
        return cls(Introduction(endpoint, ConnectorHandshake(key), is_connected=False), hearer)

    @property
    def endpoint(self) -> Endpoint:
        """For whoever waits for it. Reading and writing are the connection's own."""
        return self._met.endpoint

    @property
    def purpose(self) -> bytes:
        """What it is for; known to a listener once it is proved."""
        return self._met.handshake.purpose

    @property
    def interceptor(self) -> str:
        """As in `Introduction`."""
        return self._met.interceptor

    @property
    def session(self) -> bytes:
        """A key of this connection alone, which both ends have once it is proved."""
        return self._met.handshake.session

    # Sending

    def send(self, note: Note, payload: memoryview | bytes | None = None, key: object = None) -> None:
        """Queue a note. The payload's memory is read until it is sent, or `detach(key)` copies what is left of it.

        Before the connection is proved, it waits. On a closed one nothing happens: `Hearer.closed` says so.
        """
        view = None if payload is None else memoryview(payload).cast("B")
        if self.is_closed or self._is_ending:
            return
        if not self.is_proved:
            self._held.append((note, view, key))
            return
        data = encode_note(note, len(view) if view is not None else 0)
        self._queue.add(data, len(data))
        self._unread_notes += len(data)
        if view is not None:
            self._queue.add(view, None if key is None else _Payload(key))
        self.touched(self)
        if self._unread_notes > MAX_UNREAD_NOTES:
            self._fail(f"it has not read {self._unread_notes} bytes")

    def detach(self, key: object) -> None:
        """The memory of payloads sent under `key` is about to change: what is unsent of them is copied now."""
        self._queue.detach(_Payload(key))

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken."""
        return self._queue.size

    def flush(self) -> None:
        """Send what the kernel takes now."""
        try:
            while self._queue and not self.is_closed:
                sent = self._queue.push(self.endpoint)
                if not sent:
                    return
                self.bytes_out += sent
                for mark in self._queue.take_gone():
                    if isinstance(mark, int):
                        self._unread_notes -= mark
        except OSError as error:
            self._fail(_words(error))
            return
        if self._is_ending and not self._queue:
            self.close()

    # Receiving

    def receive(self) -> None:
        """Read what is there, up to `TURN_BYTES`, and for no longer than its slice of a turn."""
        limit = self.bytes_in + TURN_BYTES
        until = time.monotonic() + self.slice_seconds
        try:
            if not self.is_proved and not self._prove():
                return
            if self._reader.is_paused and self.is_eager:
                self._reader.go_on(until)
            while not (self.is_closed or self._reader.is_paused) and self.bytes_in < limit and self._wants_read:
                if not self._read_notes(until):
                    return
                if time.monotonic() >= until:
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(_words(error))
        except Refused as refusal:
            self.was_refused = True
            self._fail(str(refusal))
        except WireError as error:
            self._turn_away(str(error))

    @property
    def is_eager(self) -> bool:
        """Something of it lies here unheard, which the selector knows nothing of: it wants another turn."""
        if self.is_closed or not self.is_proved or not self._wants_read:
            return False
        return self._reader.is_paused or self.endpoint.has_more()

    def _read_notes(self, until: float) -> bool:
        """Whether there may be more."""
        target = self._reader.target()
        count = self.endpoint.recv_into(target)
        if not count:
            self._fail("it closed the connection")
            return False
        self.bytes_in += count
        self._reader.took(count, until)
        return count == len(target)

    def _prove(self) -> bool:
        """Go on with the handshake. Whether both ends are proven."""
        self.is_proved = self._met.advance()
        if not self.is_proved:
            if self._met.was_refused:
                self.end()
            return False
        if self._met.handshake.is_listener:
            self._met.welcome()
        near_link.keep_in_cache(self.endpoint)
        held, self._held = self._held, []
        for note, payload, key in held:
            self.send(note, payload, key)
        self._hearer.proved(self)
        return True

    def _turn_away(self, reason: str) -> None:
        """What came is no note of ours: say so, and end. Another version at the other end reads this one's, and why."""
        if self.is_proved:
            self.send(Refusal(kind="bad-request", reason=reason))
            self.flush()
            with contextlib.suppress(OSError):  # closing on unread bytes could destroy what was sent
                self.endpoint.recv(LAST_BYTES)
        self._fail(reason)

    # Large bodies (`note_reader.Sizes`, `large_bodies.Asking`)

    def expect(self, most_body: int) -> None:
        """Refuse bodies that are longer."""
        self._reader.most_body = most_body

    def may_grow(self, size: int) -> bool:
        may = self.bodies is None or self.bodies.ask(self, size)
        if not may:
            self.hold(GROWING)
        return may

    def shrunk(self) -> None:
        if self.bodies is not None:
            self.bodies.done(self)

    def let_grow(self) -> None:
        self._reader.grow()
        self.go_on(GROWING)

    # Its life

    def hold(self, reason: str) -> None:
        """Read nothing more until `go_on` is called for the same reason."""
        self._holders.add(reason)
        self.touched(self)

    def go_on(self, reason: str) -> None:
        self._holders.discard(reason)
        self.touched(self)

    @property
    def _wants_read(self) -> bool:
        return not (self._is_ending or self._holders) and not (self.pauses and self.unsent > PAUSE_BYTES)

    @property
    def mask(self) -> int:
        """What a selector should wait for."""
        if not self._met.is_connected:
            return selectors.EVENT_WRITE
        wanted = selectors.EVENT_READ if self._wants_read else 0
        return wanted | (selectors.EVENT_WRITE if self._queue else 0)

    def ready(self, events: int) -> None:
        """The selector says so."""
        if events & selectors.EVENT_READ or not self._met.is_connected:
            self.receive()
        if events & selectors.EVENT_WRITE and not self.is_closed:
            self.flush()

    def end(self) -> None:
        """Close once what was sent is out; nothing more is read."""
        self._is_ending = True
        self._reader.stop()
        self.touched(self)

    def close(self) -> None:
        """At once. Nothing more is heard of it."""
        if self.is_closed:
            return
        self.is_closed = True
        self.shrunk()
        self._reader.stop()
        self._queue.clear()
        self._held.clear()
        self._unread_notes = 0
        self.touched(self)

    def _fail(self, reason: str) -> None:
        if not self.is_closed:
            self.close()
            self._hearer.closed(self, reason)


def _words(error: OSError) -> str:
    """An end that dies with bytes unread resets the connection: whether it did depends on when it died."""
    said = error.strerror or str(error)
    is_closing = isinstance(error, ConnectionResetError | BrokenPipeError) and said != CLOSED
    return f"it closed the connection: {said}" if is_closing else said
