"""A ring of letters in shared memory: one process writes, one reads, neither waits.

The writer's position lies in the writer's memory and the reader's in the reader's; both only grow. Letters start at
multiples of 64 bytes and never wrap: a letter that does not fit before the end starts at the front. The writer writes
the position after the letter, with a fence between both if the processor does not keep the order of writes. Each end
reads what the other process wrote once and checks it before use: an impossible position or letter is a `WireError`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from shoal.collectives.mailbox.letters import LETTER_BYTES, Letter, checked, copied_from, pack_into
from shoal.errors import WireError
from shoal.transport.memory import memory_order

LINE = 64
RING_BYTES = 512 * 1024
MOST_BYTES = RING_BYTES // 2 - LINE - LETTER_BYTES  # of a letter's payload; a larger letter might never fit


@dataclass(frozen=True)
class Counter:
    """A 64-bit word of an arena."""

    words: memoryview
    index: int

    def get(self) -> int:
        return int(self.words[self.index])

    def set(self, value: int) -> None:
        self.words[self.index] = value


@dataclass(frozen=True)
class RingPlace:
    """Where a ring lies."""

    memory: memoryview  # of its arena
    offset: int  # in that arena
    address: int  # in this process


def _lines(length: int) -> int:
    return (LETTER_BYTES + length + LINE - 1) & -LINE


class Writer:
    def __init__(self, place: RingPlace, written: Counter, read: Counter) -> None:
        self._place = place
        self._written, self._read = written, read
        self._head = self._tail = 0  # as last seen by this end

    def write(self, letter: Letter, payload: int) -> bool:
        """False: there is no room now. `payload`: address of the bytes that follow the letter."""
        needed = _lines(letter.length)
        position = self._head % RING_BYTES
        skipped = RING_BYTES - position if RING_BYTES - position < needed else 0
        if self._head + skipped + needed - self._tail > RING_BYTES:
            self._tail = self._read_so_far()
            if self._head + skipped + needed - self._tail > RING_BYTES:
                return False
        place = self._place
        if skipped:
            place.memory[place.offset + position] = 0
            position = 0
        pack_into(place.memory, place.offset + position, letter)
        if letter.length:
            ctypes.memmove(place.address + position + LETTER_BYTES, payload, letter.length)
        self._head += skipped + needed
        if memory_order.is_weak:
            memory_order.fence()
        self._written.set(self._head)
        return True

    def _read_so_far(self) -> int:
        tail = self._read.get()
        if memory_order.is_weak:
            memory_order.fence()
        if not self._tail <= tail <= self._head:
            raise WireError(f"it has read {tail} bytes of a ring that {self._head} were written into")
        return tail


class Reader:
    def __init__(self, place: RingPlace, written: Counter, read: Counter) -> None:
        self._place = place
        self._written, self._read = written, read
        self._tail = 0
        self.payload = 0  # address of the bytes that follow the letter that was peeked at
        self._start = 0  # the same place as an offset in the arena

    @property
    def written(self) -> int:
        """The writer's position."""
        end = self._written.get()
        if memory_order.is_weak:
            memory_order.fence()
        if not 0 <= end - self._tail <= RING_BYTES or end % LINE:
            raise WireError(f"it has written {end} bytes into a ring of {RING_BYTES}, of which {self._tail} were read")
        return end

    @property
    def has_letter(self) -> bool:
        return self._written.get() != self._tail

    def peek(self, end: int) -> Letter | None:
        """The next letter before the writer's position `end`; it stays until `advance`."""
        if self._tail == end:
            return None
        place, position = self._place, self._tail % RING_BYTES
        letter = copied_from(place.memory, place.offset + position)
        if letter.kind == 0:  # the rest of the ring is left empty
            self._tail += RING_BYTES - position
            position = 0
            letter = copied_from(place.memory, place.offset)
        self.payload = place.address + position + LETTER_BYTES
        self._start = place.offset + position + LETTER_BYTES
        if _lines(checked(letter, most=MOST_BYTES).length) > min(end - self._tail, RING_BYTES - position):
            raise WireError(f"a letter of {letter.length} bytes goes beyond what was written into the ring")
        return letter

    def view(self, length: int) -> memoryview:
        """The bytes that follow the letter that was peeked at."""
        return self._place.memory[self._start : self._start + length]

    def advance(self, letter: Letter) -> None:
        """Free the place of the letter that was peeked at, so that the writer may use it again."""
        self._tail += _lines(letter.length)
        if memory_order.is_weak:
            memory_order.fence()
        self._read.set(self._tail)
