"""One neighbour of a mailbox, for the lane through memory: both rings, the state in its arena, its bell, its process.

The layout of a mailbox's arena is here. A bell is a pipe, so one `epoll` can wait for it together with the deaths of
processes (pidfds). Not here: what is done with letters (`memory_lane`).
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import msgspec

from shoal.bounds import Ordinal
from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.letter_ring import RING_BYTES, Counter, Reader, RingPlace, Writer
from shoal.collectives.mailbox.letters import Letter
from shoal.collectives.mailbox.pieces import PASSAGE_BYTES, Places, SharedSlots
from shoal.errors import PeerLost, WireError
from shoal.transport.memory import cross_memory, memory_order
from shoal.transport.memory.arena import Arena, Offer, PeerArena
from shoal.transport.mesh.stream_ending import FINISHED, StreamEnding

# An arena in 64-bit words: the reserved start, whether this rank leaves and sleeps, then two cache lines per neighbour.
STATE, BLAMED, ASLEEP, _NEIGHBOURS = 8, 9, 16, 24
_WRITTEN, _CROWDED, _READ, _PER_NEIGHBOUR = 0, 1, 8, 16  # in a neighbour's lines; a passage has more words there
_PAGE = 4096
IN, HAS_FINISHED, HAS_GIVEN_UP = 0, 1, 2  # states
# Errors of opening what belongs to a process that has just ended; root owns what is left of it in /proc.
_ENDED = (FileNotFoundError, ProcessLookupError, PermissionError)


class Doorplate(msgspec.Struct, frozen=True):
    """How neighbours reach a rank."""

    offer: Offer
    bell: Ordinal  # descriptor of the pipe in that process


def arena_bytes(neighbours: int) -> int:
    """`neighbours`: number of ranks on the machine, including this one."""
    return _passages_at(neighbours) + neighbours * PASSAGE_BYTES


def _rings_at(neighbours: int) -> int:
    return -(-8 * (_NEIGHBOURS + neighbours * _PER_NEIGHBOUR) // _PAGE) * _PAGE


def _passages_at(neighbours: int) -> int:
    return _rings_at(neighbours) + neighbours * RING_BYTES


class Bell:
    """A pipe: a neighbour writes into it to wake this rank, which reads it."""

    def __init__(self) -> None:
        self.descriptor, self._other_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def silence(self) -> None:
        try:
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            return  # silent already

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._other_end)


class Neighbour:
    def __init__(self, rank: int, index: int, doorplate: Doorplate) -> None:
        """`index`: the neighbour's place among the ranks of the machine. `connect` sets the rings."""
        self.rank, self.index = rank, index
        self.process = doorplate.offer.process
        self.is_elsewhere = self.process != os.getpid()  # ranks may be threads of one process
        gone = PeerLost(f"rank {rank} is gone: process {self.process} left before all had met", peer=rank)
        arena = PeerArena.open(doorplate.offer)
        if arena is None:
            raise gone
        self.arena = arena
        self.bell = -1
        try:
            # Opening another process's pipe through /proc gives this one a writing end. A full pipe has rung already,
            # so writing need not block.
            self.bell = os.open(f"/proc/{self.process}/fd/{doorplate.bell}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self.pidfd = os.pidfd_open(self.process)
        except OSError as error:
            arena.close()
            if self.bell >= 0:
                os.close(self.bell)
            if isinstance(error, _ENDED):
                raise gone from None
            raise
        self.words = arena.memory.cast("Q")
        self.waiting: deque[tuple[Letter, Delivery | None]] = deque()  # letters that found no room, in order
        self.is_dying = False  # its memory is gone; its pidfd will tell later
        self.has_ended = False
        self.trouble: WireError | None = None  # it wrote something impossible; found where nothing may be raised
        self.stopped_since: float | None = None  # by time.monotonic
        self.writer: Writer
        self.reader: Reader
        self.crowded: Counter  # in our arena: letters to it wait for room
        self.is_crowded: Counter  # in its arena: letters to us wait for room
        self.passage: SharedSlots | None = None  # only if cores are few

    def connect(self, own: Arena, words: memoryview, index: int, neighbours: int) -> None:
        """`words`: those of our arena `own`; `index`: this rank's place among the `neighbours` ranks of the machine."""
        rings = _rings_at(neighbours)
        theirs, ours = rings + index * RING_BYTES, rings + self.index * RING_BYTES
        line_of_us = _NEIGHBOURS + index * _PER_NEIGHBOUR
        line_of_it = _NEIGHBOURS + self.index * _PER_NEIGHBOUR
        self.writer = Writer(
            RingPlace(own.memory, ours, own.address + ours),
            Counter(words, line_of_it + _WRITTEN),
            Counter(self.words, line_of_us + _READ),
        )
        self.reader = Reader(
            RingPlace(self.arena.memory, theirs, self.arena.address + theirs),
            Counter(self.words, line_of_us + _WRITTEN),
            Counter(words, line_of_it + _READ),
        )
        self.crowded = Counter(words, line_of_it + _CROWDED)
        self.is_crowded = Counter(self.words, line_of_us + _CROWDED)

    def passage_places(self, own: Arena, index: int, neighbours: int) -> Places:
        """Where long messages to and from it pass; the arguments are those of `connect`."""
        passage = _passages_at(neighbours)
        return Places(
            own_line=own.address + 8 * (_NEIGHBOURS + self.index * _PER_NEIGHBOUR),
            its_line=self.arena.address + 8 * (_NEIGHBOURS + index * _PER_NEIGHBOUR),
            own_state=own.address + 8 * STATE,
            its_state=self.arena.address + 8 * STATE,
            own_slots=own.address + passage + self.index * PASSAGE_BYTES,
            its_slots=self.arena.address + passage + index * PASSAGE_BYTES,
        )

    @property
    def ending(self) -> StreamEnding | None:
        """What the neighbour has said about leaving; None: it has not left."""
        state = self.words[STATE]
        if state == IN:
            return None
        if memory_order.is_weak:
            memory_order.fence()
        blamed = self.words[BLAMED]  # 0: nobody, else the rank plus one
        return (
            FINISHED if state == HAS_FINISHED else StreamEnding(announced=True, blamed=blamed - 1 if blamed else None)
        )

    def garbled(self, error: WireError) -> WireError:
        """The same error with the rank and process that wrote it."""
        who = f"rank {self.rank} (process {self.process})"
        return error if f"rank {self.rank} " in str(error) else WireError(f"{who} wrote what no rank may: {error}")

    @property
    def is_stopped(self) -> bool:
        try:
            text = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return text[text.rindex(")") + 2] in "Tt"  # the last bracket: a program's name may contain brackets too

    def look(self) -> None:
        """Check whether the neighbour is dying."""
        self.is_dying = self.is_dying or cross_memory.is_gone(self.process)

    def ring(self) -> None:
        """Wake the neighbour, if it sleeps."""
        if self.words[ASLEEP]:
            try:
                os.write(self.bell, b"\0")
            except (BlockingIOError, BrokenPipeError):
                return  # it was rung already, or its process is gone

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.bell)
        self.words.release()
        self.arena.close()
