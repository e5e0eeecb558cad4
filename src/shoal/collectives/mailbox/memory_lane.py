"""The lane between ranks of one machine: rings of letters in shared memory, and bells that wake sleeping ranks.

Every rank has an arena that it alone writes: what it sends, how far it has read what others sent, whether it sleeps,
and whether it leaves. Short messages lie in a ring. Longer ones are read out of their sender's memory where that is
allowed; elsewhere they follow through the ring in pieces. Only sleeping ranks are rung: one that is awake polls.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import msgspec

from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.lane import Lane, Recipient
from shoal.collectives.mailbox.letters import Letter, LetterKind
from shoal.collectives.mailbox.neighbour import (
    ASLEEP,
    BLAMED,
    HAS_FINISHED,
    HAS_GIVEN_UP,
    IN,
    STATE,
    Bell,
    Doorplate,
    Neighbour,
    arena_bytes,
)
from shoal.collectives.mailbox.pieces import SharedSlots
from shoal.errors import PeerLost, WireError
from shoal.transport.memory import cross_memory, memory_order
from shoal.transport.memory.arena import Arena
from shoal.transport.memory.neighbours import Neighbourhood
from shoal.transport.mesh.stream_ending import DIED, StreamEnding

Exchange = Callable[[bytes], list[bytes]]  # gives every rank's bytes to every rank, in order of ranks

# A message that travels with its letter is copied twice. A longer one is copied once, but its sender has to wait for
# the receiver's answer; up to 64 KB the second copy is cheaper than waking up.
MOST_INLINE = 64 * 1024
PIECE_BYTES = 64 * 1024  # of a long message that goes through the ring
STOPPED_LIMIT = 5.0  # seconds; a process that is stopped for longer counts as lost
STOP_LOOK = 0.5  # seconds between two checks whether processes are stopped


class MemoryLane(Lane):
    is_local = True
    most_inline = MOST_INLINE
    most_ahead = 0  # a neighbour reads the message out of our memory, or asks for it at once

    def __init__(self, own: Arena, bell: Bell, neighbours: list[Neighbour], *, reads_memory: bool) -> None:
        """Arena, bell and neighbours belong to the lane from now on."""
        self.reads_memory = reads_memory
        self.stopped_limit = STOPPED_LIMIT
        self._asked = 0.0  # when this lane last looked for stopped processes, by time.monotonic
        self._own = own
        self._words = own.memory.cast("Q")
        self._bell = bell
        self._neighbours = {neighbour.rank: neighbour for neighbour in neighbours}
        self.peers = self._neighbours.keys()
        self._epoll: select.epoll
        self._by_pidfd = {neighbour.pidfd: neighbour for neighbour in neighbours}

    @classmethod
    def form(cls, exchange: Exchange, rank: int, neighbourhood: Neighbourhood) -> Self | None:
        """Called by all ranks of a group. None: no other rank is on this machine."""
        host = neighbourhood.host_of(rank)
        if len(host) == 1:
            exchange(b"")
            exchange(b"")
            return None
        own, bell = Arena.create(arena_bytes(len(host))), Bell()
        neighbours: list[Neighbour] = []
        try:
            told = exchange(msgspec.msgpack.encode(Doorplate(own.offer, bell.descriptor)))
            for index, peer in enumerate(host):
                if peer != rank:
                    doorplate = msgspec.msgpack.decode(told[peer], type=Doorplate)
                    neighbours.append(Neighbour(peer, index, doorplate))
            exchange(b"")  # no rank leaves before all have opened what they need
        except BaseException:
            for neighbour in neighbours:
                neighbour.close()
            bell.close()
            own.close()
            raise
        own.withdraw()
        lane = cls(own, bell, neighbours, reads_memory=neighbourhood.reads_memory)
        # With two cores for each rank, two threads of the receiver read as fast without the sender's help.
        has_passages = neighbourhood.reads_memory and 2 * len(host) > len(os.sched_getaffinity(0))
        for neighbour in neighbours:
            neighbour.connect(own, lane._words, host.index(rank), len(host))
            if has_passages:
                places = neighbour.passage_places(own, host.index(rank), len(host))
                neighbour.passage = SharedSlots.open(places, partial(lane._ring, neighbour))
        return lane

    def post(self, target: int, letter: Letter, delivery: Delivery | None = None) -> bool:
        neighbour = self._neighbours[target]
        if neighbour.has_ended or neighbour.waiting:
            is_posted = False
        else:
            is_posted = self._write(neighbour, letter, delivery)
            if not is_posted:
                neighbour.crowded.set(1)  # from now on its reader rings once it makes room; it may just have done so
                memory_order.full_fence()
                is_posted = self._write(neighbour, letter, delivery)
                neighbour.crowded.set(not is_posted)
            self._ring(neighbour)
        if not is_posted and not neighbour.has_ended:
            neighbour.waiting.append((letter, delivery))
        return is_posted

    def watch(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        epoll.register(self._bell.descriptor, select.EPOLLIN)
        for neighbour in self._neighbours.values():
            if neighbour.is_elsewhere:
                epoll.register(neighbour.pidfd, select.EPOLLIN)

    def collect(self, recipient: Recipient, ready: Sequence[tuple[int, int]]) -> None:
        dead = [self._by_pidfd[descriptor] for descriptor, _ in ready if descriptor in self._by_pidfd]
        if any(descriptor == self._bell.descriptor for descriptor, _ in ready):
            self._bell.silence()
        for neighbour in self._neighbours.values():
            if neighbour.has_ended:
                continue
            ending = neighbour.ending  # read before its letters, since all letters that it sent before leaving count
            if neighbour.trouble is not None:
                raise neighbour.trouble
            try:
                self._take_letters(neighbour, recipient)
            except WireError as error:
                raise neighbour.garbled(error) from None
            if neighbour.waiting:
                self._write_waiting(neighbour, recipient)
                self._ring(neighbour)
            if neighbour.has_ended:
                continue  # its letters made this rank leave, which ends all neighbours
            if ending is not None:
                self._end(neighbour, ending, "", recipient)
            elif neighbour in dead or neighbour.is_dying:
                why = f"its process {neighbour.process} ended without a word"
                self._end(neighbour, neighbour.ending or DIED, why, recipient)

    @property
    def is_streaming(self) -> bool:
        return False  # the other side is as fast as this one

    def has_mail(self) -> bool:
        return any(neighbour.reader.has_letter for neighbour in self._neighbours.values())

    def sleep(self, is_asleep: bool) -> None:
        self._words[ASLEEP] = is_asleep
        memory_order.full_fence()

    def pull(self, source: int, there: int, here: int, size: int) -> None:
        neighbour = self._neighbours[source]
        try:
            cross_memory.read(neighbour.process, there, here, size)
            if memory_order.is_weak:
                memory_order.fence()
            is_whole = neighbour.words[STATE] == IN  # if not, its memory may have changed meanwhile
        except OSError:
            is_whole = False
            neighbour.look()
        if not is_whole:
            raise PeerLost(f"rank {source} left before its message was read", peer=source)

    def passage_of(self, peer: int) -> SharedSlots | None:
        return self._neighbours[peer].passage

    def look(self, recipient: Recipient, now: float) -> None:
        for neighbour in self._neighbours.values():
            neighbour.look()
        if now - self._asked < STOP_LOOK:
            return
        self._asked = now
        for neighbour in self._neighbours.values():
            if neighbour.has_ended or not neighbour.is_stopped:
                neighbour.stopped_since = None
                continue
            neighbour.stopped_since = neighbour.stopped_since or now
            if now - neighbour.stopped_since >= self.stopped_limit:
                why = f"its process {neighbour.process} has been stopped for {self.stopped_limit:g} s"
                self._end(neighbour, DIED, why, recipient)

    def leave(self, ending: StreamEnding) -> None:
        self._words[BLAMED] = 0 if ending.blamed is None else ending.blamed + 1
        if memory_order.is_weak:
            memory_order.fence()
        self._words[STATE] = HAS_FINISHED if ending.clean else HAS_GIVEN_UP
        for neighbour in self._neighbours.values():
            neighbour.has_ended = True
            neighbour.waiting.clear()
            self._ring(neighbour)

    def close(self) -> None:
        for neighbour in self._neighbours.values():
            neighbour.close()
        self._bell.close()
        self._words.release()
        self._own.close()

    def _take_letters(self, neighbour: Neighbour, recipient: Recipient) -> None:
        reader = neighbour.reader
        if not reader.has_letter:
            return
        end = reader.written
        while not neighbour.has_ended and (letter := reader.peek(end)) is not None:
            if letter.kind == LetterKind.DATA:
                recipient.begin(neighbour.rank, letter)[:] = reader.view(letter.length)
                recipient.end(neighbour.rank, letter)
            else:
                recipient.letter(neighbour.rank, letter, reader.payload)
            reader.advance(letter)
        memory_order.full_fence()
        if neighbour.is_crowded.get():
            neighbour.ring()

    def _write(self, neighbour: Neighbour, letter: Letter, delivery: Delivery | None) -> bool:
        """False: there is no room now, or the neighbour wrote something impossible, which `collect` raises."""
        try:
            if letter.kind != LetterKind.DATA:
                return neighbour.writer.write(letter, delivery.address if delivery is not None else 0)
            assert delivery is not None
            while delivery.position < delivery.size:
                length = min(PIECE_BYTES, delivery.size - delivery.position)
                if not neighbour.writer.write(letter._replace(length=length), delivery.address + delivery.position):
                    return False
                delivery.position += length
        except WireError as error:
            neighbour.trouble = neighbour.garbled(error)
            return False
        return True

    def _write_waiting(self, neighbour: Neighbour, recipient: Recipient) -> None:
        while neighbour.waiting:
            letter, delivery = neighbour.waiting[0]
            if not self._write(neighbour, letter, delivery):
                return
            neighbour.waiting.popleft()
            if delivery is not None and letter.kind != LetterKind.OFFER:
                recipient.posted(delivery)
        neighbour.crowded.set(0)

    def _ring(self, neighbour: Neighbour) -> None:
        # Our letter must be visible before we read whether the neighbour sleeps. A sleeper does the reverse: it says
        # that it sleeps, then looks for letters.
        memory_order.full_fence()
        neighbour.ring()

    def _end(self, neighbour: Neighbour, ending: StreamEnding, why: str, recipient: Recipient) -> None:
        neighbour.has_ended = True
        neighbour.waiting.clear()
        if neighbour.is_elsewhere:
            self._epoll.unregister(neighbour.pidfd)
        recipient.ended(neighbour.rank, ending, why)
