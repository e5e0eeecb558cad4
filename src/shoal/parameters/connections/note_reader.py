"""Bytes in, notes out: cuts a stream into notes, and has their payloads received straight into place.

No socket: the owner asks `target` where the next bytes should go and tells `took` how many came. Not here: what
notes look like (`wire.parameter_messages`), and sending (`connection`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from shoal.errors import WireError
from shoal.wire.note_frames import HEAD_BYTES, MAX_BODY_BYTES, decode_body, decode_head
from shoal.wire.parameter_messages import AnyNote

BUFFER_BYTES = 64 * 1024  # room for many small notes in one read; at most this much of a large payload is copied
EMPTY = memoryview(b"")

Room = Callable[[AnyNote, int], memoryview | None]
Arrived = Callable[[AnyNote, memoryview | None], None]


class Sizes(Protocol):
    def may_grow(self, size: int) -> bool:
        """Whether there is memory for a body of this size. False: `grow` is called when there is."""

    def shrunk(self) -> None:
        """The memory for the body is not needed any more."""


class NoteReader:
    """One stream. `room` returns memory for a payload of so many bytes, or None: the payload is thrown away."""

    def __init__(self, room: Room, arrived: Arrived, sizes: Sizes | None = None) -> None:
        """`sizes` is asked before memory is taken for a large body, and told when that memory is given back."""
        self._room = room
        self._arrived = arrived
        self._sizes = sizes
        self.most_body = MAX_BODY_BYTES  # bytes
        self._is_starved = False  # a large body has begun, and there is no memory for it yet
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0  # of the unread bytes in the buffer
        self._end = 0
        self._note: AnyNote | None = None  # the note whose payload is being received
        self._payload: memoryview | None = None  # memory for the payload; None: it is thrown away
        self._filled = 0  # bytes of the payload that came
        self._size = 0  # bytes of the whole payload
        self._is_stopped = False
        self.is_paused = False  # its time was up with whole notes left in the buffer: call `go_on` before reading

    def stop(self) -> None:
        """Hand over nothing more, not even what came already."""
        self._is_stopped = True
        self._payload = None

    @property
    def wanted(self) -> int:
        """Bytes of the present payload that have not come yet."""
        return self._size - self._filled

    def target(self) -> memoryview:
        """Where the next bytes go. Never empty."""
        if self._note is None:
            return self._view[self._end :]
        if self._payload is None:
            return self._view[: min(self.wanted, len(self._view))]
        return self._payload[self._filled :]

    def took(self, count: int, until: float = math.inf) -> None:
        """So many bytes are in `target` now. `WireError`: they are no notes.

        Notes are handed over until the time `until`, by time.monotonic; the rest of them waits for `go_on`.
        """
        if self._note is not None:
            self._filled += count
            self._finish()
        else:
            self._end += count
        self.go_on(until)

    def go_on(self, until: float = math.inf) -> None:
        """Hand over the notes that have come: at least one, if one is whole."""
        self.is_paused = False
        while not self._is_stopped and self._note is None and self._read_note():
            self._finish()
            if time.monotonic() >= until and self._note is None:
                self.is_paused = not self._is_stopped
                break
        self._compact()

    def _read_note(self) -> bool:
        """Whether there was a whole head and body. Moves what has come of its payload into place."""
        if self._end - self._start < HEAD_BYTES:
            return False
        body, payload = decode_head(self._view[self._start : self._start + HEAD_BYTES])
        if body > self.most_body:
            raise WireError(f"a message of {body} bytes; here at most {self.most_body} are expected")
        begin = self._start + HEAD_BYTES
        if self._end - begin < body:
            self._make_room(HEAD_BYTES + body)
            return False
        note = decode_body(self._view[begin : begin + body])
        self._start = begin + body
        self._note, self._size, self._filled = note, payload, 0
        self._payload = self._room_for(note, payload) if payload else EMPTY
        here = min(payload, self._end - self._start)
        if here and self._payload is not None:
            self._payload[:here] = self._view[self._start : self._start + here]
        self._start += here
        self._filled = here
        return True

    def _room_for(self, note: AnyNote, size: int) -> memoryview | None:
        room = self._room(note, size)
        if room is None:
            return None
        room = room.cast("B") if room.format != "B" or room.ndim != 1 else room
        if len(room) != size:
            raise WireError(f"{type(note).__name__} comes with {size} bytes, and there should be {len(room)}")
        return room

    def _finish(self) -> None:
        """Hand the note over, if all of its payload has come."""
        if self._note is None or self._filled < self._size or self._is_stopped:
            return
        note, payload = self._note, self._payload
        self._note = self._payload = None
        self._size = self._filled = 0
        self._arrived(note, payload)

    def _make_room(self, size: int) -> None:
        if size <= len(self._buffer) or self._is_starved:
            return
        if self._sizes is not None and not self._sizes.may_grow(size):
            self._is_starved = True
            return
        self._grow(size)

    def grow(self) -> None:
        """There is memory for the body that has begun."""
        self._is_starved = False
        body, _ = decode_head(self._view[self._start : self._start + HEAD_BYTES])
        self._grow(HEAD_BYTES + body)

    def _grow(self, size: int) -> None:
        grown = bytearray(size + BUFFER_BYTES)
        grown[: self._end - self._start] = self._view[self._start : self._end]
        self._buffer, self._view = grown, memoryview(grown)
        self._start, self._end = 0, self._end - self._start

    def _compact(self) -> None:
        """Move unread bytes to the front; give back a buffer that was enlarged for one large body."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > BUFFER_BYTES and self._note is None:
                self._buffer = bytearray(BUFFER_BYTES)
                self._view = memoryview(self._buffer)
                if self._sizes is not None:
                    self._sizes.shrunk()
        elif self._start:
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
