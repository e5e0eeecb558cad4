"""The ranks of a group on one machine: their arenas, how they wait for each other, and how they notice who left.

A rank writes its own arena only. Its phase counts up whenever it has something for the others to see; they sleep on
that word. Its state says that it has finished, or has given up and whom it blames; a process that dies says nothing, so
its pidfd is watched, and whether it still has memory. The layout is the C extension's too (`native_layout`). Not here:
operations (`collectives`).
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Aborted, ExchangeFailed, PeerLost
from shoal.transport.memory import cross_memory, futex, memory_order
from shoal.transport.memory.arena import Arena, PeerArena, word_at
from shoal.transport.mesh.stream_ending import DIED, FINISHED, StreamEnding, name_the_lost
from shoal.transport.native_layout import (
    HAS_FINISHED,
    HAS_GIVEN_UP,
    IN,
    MOST_ENTRIES,
    MOST_RANKS,
    NOTICE_BYTES,
    NOTICES,
    OPERATIONS,
    PHASE,
    RESULTS,
    ROUNDS,
    SLOT_BYTES,
    SLOTS,
    STATE,
)

# With the layout of an arena, for those who use a team's arenas.
__all__ = [
    "ARENA_BYTES",
    "MOST_ENTRIES",
    "MOST_RANKS",
    "NOTICES",
    "NOTICE_BYTES",
    "OPERATIONS",
    "ROUNDS",
    "SLOTS",
    "SLOT_BYTES",
    "Team",
    "TeamLimits",
    "in_group_ranks",
    "is_behind",
]

BLAMED = 196  # offset in an arena, in bytes
ARENA_BYTES = RESULTS + 2 * SLOT_BYTES  # two slots and two results
TICK = 0.02  # seconds between two looks at who is still there
STOP_LOOK = 0.5  # seconds of waiting before it is asked whether the other process is stopped


@dataclass(frozen=True)
class TeamLimits:
    """How long others are waited for, in seconds."""

    stopped: float = 5.0  # a process that is stopped for so long counts as lost
    late: float = 0.0  # no wait is longer; 0: a rank that is late is waited for without limit


class Team:
    """One rank's view. Driven by one thread; only `give_up` and `behind` may come from another."""

    def __init__(self, rank: int, own: Arena, peers: Sequence[PeerArena | None], processes: Sequence[int]) -> None:
        """`peers` and `processes` by rank within the team; None in place of this rank's own. All belong to the team.

        `PeerLost`: one of the processes has ended meanwhile. Then arenas stay the caller's.
        """
        self.rank, self.size = rank, len(peers)
        self.processes = list(processes)
        self.limits = TeamLimits()
        self.idle_seconds = 0.0
        self._own = own
        self._peers = list(peers)
        self.addresses = [own.address if peer is None else peer.address for peer in peers]
        self.pidfds = _pidfds_of(peers, processes)
        self._deaths = select.poll()
        for descriptor in self.pidfds:
            if descriptor >= 0:
                self._deaths.register(descriptor, select.POLLIN)
        self._reason = ""  # why this rank gave up
        self._closed = False
        self._guard = threading.Lock()  # of leaving

    @property
    def phase(self) -> int:
        """This rank's own."""
        return self.word(self.rank, PHASE)

    def count(self, counter: int) -> None:
        """One more of `OPERATIONS` or `ROUNDS`: all ranks count them alike."""
        word_at(self._own.address + counter).value += 1

    def arena(self, rank: int) -> memoryview:
        peer = self._peers[rank]
        return self._own.memory if peer is None else peer.memory

    def word(self, rank: int, offset: int) -> int:
        return word_at(self.addresses[rank] + offset).value

    def signal(self) -> None:
        """Something is there to see."""
        if memory_order.is_weak:
            memory_order.fence()  # what is there, before the word that says so
        word_at(self._own.address + PHASE).value += 1
        futex.wake(self._own.address + PHASE)

    def await_phase(self, peer: int, phase: int) -> None:
        """Until that rank has come so far. `PeerLost` when it, or somebody else, will not."""
        address = self.addresses[peer] + PHASE
        started = looked = stopped_since = time.monotonic()
        while is_behind(seen := word_at(address).value, phase):
            if self.word(peer, STATE) != IN and is_behind(word_at(address).value, phase):
                self.look(awaited=peer)
            futex.wait(address, seen, TICK)
            now = time.monotonic()
            if now - looked < TICK:
                continue
            looked = now
            if is_behind(word_at(address).value, phase):
                self.look(awaited=peer)
            if now - started < STOP_LOOK or not _is_stopped(self.processes[peer]):
                stopped_since = now
            self._check_limits(peer, now - stopped_since, now - started)
        if memory_order.is_weak:
            memory_order.fence()  # the word that says so, before what is there
        self.idle_seconds += time.monotonic() - started

    def await_all(self, phase: int) -> None:
        for step in range(1, self.size):
            self.await_phase((self.rank + step) % self.size, phase)

    def behind(self) -> list[int]:
        """From any thread: the ranks that are not as far as this one. Nobody, once the team is closed."""
        with self._guard:  # the arenas stay while it is held
            if self._closed:
                return []
            phase = self.phase
            return [peer for peer in range(self.size) if is_behind(self.word(peer, PHASE), phase)]

    def look(self, awaited: int | None = None) -> None:
        """Raise if this rank has given up, or if somebody who is needed is gone."""
        if self.word(self.rank, STATE) == HAS_GIVEN_UP:
            raise Aborted(self._reason)
        endings = self._endings()
        lost = name_the_lost(endings, own=self.rank, awaited=awaited) if endings else None
        if lost is not None:
            raise _in_words(lost, endings)

    def _endings(self) -> dict[int, StreamEnding]:
        ended = {descriptor for descriptor, _ in self._deaths.poll(0)}
        found: dict[int, StreamEnding] = {}
        for rank in range(self.size):
            if rank == self.rank:
                continue
            is_dead = self.pidfds[rank] in ended or cross_memory.is_gone(self.processes[rank])  # before what it said
            state = self.word(rank, STATE)
            if state == HAS_FINISHED:
                found[rank] = FINISHED
            elif state == HAS_GIVEN_UP:
                if memory_order.is_weak:
                    memory_order.fence()
                (blamed,) = struct.unpack_from("=i", self.arena(rank), BLAMED)
                found[rank] = StreamEnding(announced=True, blamed=blamed if 0 <= blamed < self.size else None)
            elif is_dead:
                found[rank] = DIED
        return found

    def _check_limits(self, peer: int, stopped: float, late: float) -> None:
        if stopped > self.limits.stopped:
            raise self.loss_of_stopped(peer)
        if 0 < self.limits.late < late:
            raise self.loss_of_late(peer)

    def loss_of_stopped(self, peer: int) -> ExchangeFailed:
        process = self.processes[peer]
        return PeerLost(
            f"rank {peer} is stopped: process {process} has been so for {self.limits.stopped:g} s", peer=peer
        )

    def loss_of_late(self, peer: int) -> ExchangeFailed:
        return PeerLost(f"rank {peer} did not come within {self.limits.late:g} s", peer=peer)

    def give_up(self, reason: str, *, blamed: int | None = None) -> None:
        """From any thread: whoever waits, here or elsewhere, learns it. Before any memory that others read changes."""
        with self._guard:
            if self._closed or self.word(self.rank, STATE) != IN:
                return
            self._reason = reason
            struct.pack_into("=i", self._own.memory, BLAMED, -1 if blamed is None else blamed)
            self._leave(HAS_GIVEN_UP)

    def close(self) -> None:
        """Safe to call twice."""
        with self._guard:
            if self._closed:
                return
            if self.word(self.rank, STATE) == IN:
                self._leave(HAS_FINISHED)
            self._closed = True
        for descriptor in self.pidfds:
            if descriptor >= 0:
                os.close(descriptor)
        for peer in self._peers:
            if peer is not None:
                peer.close()
        self._own.close()

    def _leave(self, state: int) -> None:
        if memory_order.is_weak:
            memory_order.fence()  # peers must see whom this rank blames before they see its state
        word_at(self._own.address + STATE).value = state
        for address in self.addresses:  # our own sleeper sleeps on a peer's word
            futex.wake(address + PHASE)


def _pidfds_of(peers: Sequence[PeerArena | None], processes: Sequence[int]) -> list[int]:
    opened: list[int] = []
    try:
        for peer, process in zip(peers, processes, strict=True):
            opened.append(-1 if peer is None else os.pidfd_open(process))
    except OSError as error:
        for descriptor in opened:
            if descriptor >= 0:
                os.close(descriptor)
        if isinstance(error, ProcessLookupError):
            raise _ended(len(opened)) from None
        raise
    return opened


def _ended(rank: int) -> PeerLost:
    return PeerLost(f"rank {rank} is gone: its process ended without a word", peer=rank)


def in_group_ranks(lost: PeerLost, ranks: Sequence[int]) -> PeerLost:
    """The same, with a rank of the group in place of one of the team. `ranks`: the group's, by place in the team."""
    if lost.peer is None or ranks[lost.peer] == lost.peer:
        return lost
    rank = ranks[lost.peer]
    return PeerLost(str(lost).replace(f"rank {lost.peer} ", f"rank {rank} ", 1), peer=rank)


def is_behind(phase: int, target: int) -> bool:
    """Phases are 32 bits and wrap around."""
    return (phase - target) & 0x80000000 != 0


def _is_stopped(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text[text.rindex(")") + 2] in "Tt"  # a program's name may hold anything


def _in_words(lost: PeerLost, endings: dict[int, StreamEnding]) -> PeerLost:
    if lost.peer is not None and endings.get(lost.peer) == DIED:
        return _ended(lost.peer)
    return lost
