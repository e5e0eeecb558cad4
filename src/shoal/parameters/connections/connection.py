"""One non-blocking connection of a server group: the handshake, then notes both ways.

Used by servers, the keeper and workers alike; a `Switchboard` serves all connections of a thread. Outgoing notes and
the memory of their payloads are queued and sent with as few calls as possible; incoming payloads are received straight
into memory that the owner chooses. Nothing here raises because of the other end: `Hearer.closed` is called, once. Not
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
LAST_BYTES = 1024 * 1024  # read and thrown away before a connection is given up
MAX_UNREAD_NOTES = 64 * 1024 * 1024  # bytes of heads and bodies that may wait for the other end to read
FIRST_BODY_BYTES = 64 * 1024  # largest body before the other end has said who it is
GROWING = "growing"  # why a connection is held
PAUSE_BYTES = 256 * 1024 * 1024  # with more bytes unsent, nothing is read from an end that only asks (`pauses`)


class Hearer(Protocol):
    """The owner of a connection, which is told what happens on it, in the thread that serves the connection."""

    def proved(self, connection: Connection) -> None:
        """Both ends hold the token; notes may be sent."""

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        """Memory for the note's payload: exactly `size` writable bytes. None: the payload is read and thrown away."""

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None:
        """A whole note; `payload` is what `room` returned, or empty if the note has none."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone. Not called after `close`."""


class _Payload(NamedTuple):
    """Marks memory that its owner may want back: see `Connection.detach`."""

    key: object


class Connection:
    """Made by `accepted` or `connecting`; works once it is given to `Switchboard.add`."""

    def __init__(self, met: Introduction, hearer: Hearer) -> None:
        self.label: object = None  # for the owner's use
        self.party: object = None  # the job that it belongs to, if several share a thread: see `Switchboard`
        self.bodies: LargeBodies | None = None  # memory for large bodies, shared with others of its party
        self.is_proved = False
        self.is_closed = False
        self.was_refused = False  # in the handshake: another token, or a job that is not known at the other end
        self.pauses = False  # read nothing while much output is unsent; set at one end at most, or both might wait
        self._holders: set[str] = set()  # the owner's reasons to read nothing for now
        self.slice_seconds = math.inf  # longest time in one turn for handling its notes
        self.bytes_in = 0
        self.bytes_out = 0
        self._hearer = hearer
        self._met = met
        self._queue: SendQueue[_Payload | int] = SendQueue()  # the mark of a note is its number of bytes
        self._unread_notes = 0  # bytes of notes in the queue
        self._held: list[tuple[Note, memoryview | None, object]] = []  # sent before it was proved
        self._is_ending = False  # close when everything is sent
        self._reader = NoteReader(
            lambda note, size: hearer.room(self, note, size),
            lambda note, payload: hearer.arrived(self, note, payload),
            self,
        )
        self.touched: Callable[[Connection], None] = lambda _: None  # the switchboard's: called on any change

    @classmethod
    def accepted(cls, endpoint: socket.socket, keys: Callable[[], Iterable[Key]], hearer: Hearer) -> Connection:
        """From a socket that `accept` returned. `OSError`: the other end is gone already."""
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
        """Begin to connect. `OSError`: it cannot even be tried. Looking up an address by name may take long."""
        endpoint = begin_to_connect(name_lookup.find(address) if isinstance(address, Address) else address)
        silence.end_when_unacknowledged(endpoint)
        return cls(Introduction(endpoint, ConnectorHandshake(key), is_connected=False), hearer)

    @property
    def endpoint(self) -> Endpoint:
        """Only for waiting; the connection itself reads and writes."""
        return self._met.endpoint

    @property
    def purpose(self) -> bytes:
        """What the connection is for; a listener knows it once the connection is proved."""
        return self._met.handshake.purpose

    @property
    def interceptor(self) -> str:
        """As in `Introduction`."""
        return self._met.interceptor

    @property
    def session(self) -> bytes:
        """A key of this connection alone, which both ends have once the connection is proved."""
        return self._met.handshake.session

    # Sending

    def send(self, note: Note, payload: memoryview | bytes | None = None, key: object = None) -> None:
        """Queue a note. The payload's memory is needed until it is sent, or until `detach(key)` copies the rest of it.

        Notes wait until the connection is proved. On a closed one nothing happens: `Hearer.closed` was called.
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
        """The memory of payloads sent under `key` is about to change: copy what is still unsent of them."""
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
        """Read what has arrived: at most `TURN_BYTES`, and no longer than `slice_seconds`."""
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
        """Received bytes wait here to be handled. The selector does not know of them, so another turn is needed."""
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
        """Go on with the handshake. True: both ends have proved who they are."""
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
        """The other end sent something that is no note: say so, and close. If it has another version, it learns why."""
        if self.is_proved:
            self.send(Refusal(kind="bad-request", reason=reason))
            self.flush()
            with contextlib.suppress(OSError):  # closing on unread bytes could destroy what was sent
                self.endpoint.recv(LAST_BYTES)
        self._fail(reason)

    # Large bodies (`note_reader.Sizes`, `large_bodies.RoomSeeker`)

    def expect(self, most_body: int) -> None:
        """Refuse longer bodies from now on."""
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
        """The selector has reported these events."""
        if events & selectors.EVENT_READ or not self._met.is_connected:
            self.receive()
        if events & selectors.EVENT_WRITE and not self.is_closed:
            self.flush()

    def end(self) -> None:
        """Close once everything queued is sent; read nothing more."""
        self._is_ending = True
        self._reader.stop()
        self.touched(self)

    def close(self) -> None:
        """Close at once. The hearer is not called any more."""
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
    """A process that dies with bytes unread resets the connection, and otherwise closes it: both are reported alike."""
    said = error.strerror or str(error)
    is_closing = isinstance(error, ConnectionResetError | BrokenPipeError) and said != CLOSED
    return f"it closed the connection: {said}" if is_closing else said
