"""The ranks of a group on one machine: their arenas, how they wait for each other, and how they notice a loss.

A rank writes only its own arena. It counts up its phase whenever it has something for the others to see; they sleep on
that word. Its state says that it has finished, or that it has given up and which rank it blames. A process that dies
says nothing, so the others watch its pidfd and whether it still has memory. The C extension uses the same layout
(`native_layout`). Not here: operations (`collectives`).
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

# Includes the layout of an arena, for modules that use a team's arenas.
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
TICK = 0.02  # seconds between two looks at which ranks are still there
STOP_LOOK = 0.5  # seconds of waiting before the first check whether the awaited process is stopped


@dataclass(frozen=True)
class TeamLimits:
    """How long a rank waits for others, in seconds."""

    stopped: float = 5.0  # a process that is stopped for longer counts as lost
    late: float = 0.0  # longest wait; 0: a rank waits for a late one without limit


class Team:
    """One rank's view. Driven by one thread; only `give_up` and `behind` may come from another."""

    def __init__(self, rank: int, own: Arena, peers: Sequence[PeerArena | None], processes: Sequence[int]) -> None:
        """`peers` (None for this rank) and `processes`: by rank within the team. The team owns all arenas.

        `PeerLost`: one of the processes has ended meanwhile. Then the caller keeps the arenas.
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
        self._guard = threading.Lock()  # held while this rank leaves, and while another thread reads arenas

    @property
    def phase(self) -> int:
        """This rank's own phase."""
        return self.word(self.rank, PHASE)

    def count(self, counter: int) -> None:
        """Count one more of `OPERATIONS` or `ROUNDS`, which all ranks count alike."""
        word_at(self._own.address + counter).value += 1

    def arena(self, rank: int) -> memoryview:
        peer = self._peers[rank]
        return self._own.memory if peer is None else peer.memory

    def word(self, rank: int, offset: int) -> int:
        return word_at(self.addresses[rank] + offset).value

    def signal(self) -> None:
        """Tell the others that there is something to see."""
        if memory_order.is_weak:
            memory_order.fence()  # between the data and the word that announces it
        word_at(self._own.address + PHASE).value += 1
        futex.wake(self._own.address + PHASE)

    def await_phase(self, peer: int, phase: int) -> None:
        """Wait until that rank has reached `phase`. `PeerLost`: that rank, or another one, is lost."""
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
            memory_order.fence()  # between the word and the data that it announces
        self.idle_seconds += time.monotonic() - started

    def await_all(self, phase: int) -> None:
        for step in range(1, self.size):
            self.await_phase((self.rank + step) % self.size, phase)

    def behind(self) -> list[int]:
        """From any thread: the ranks whose phase is behind this rank's. Empty once the team is closed."""
        with self._guard:  # arenas stay mapped while it is held
            if self._closed:
                return []
            phase = self.phase
            return [peer for peer in range(self.size) if is_behind(self.word(peer, PHASE), phase)]

    def look(self, awaited: int | None = None) -> None:
        """Raise if this rank has given up, or if a rank that is needed is gone."""
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
            # Ask whether it is dead before reading its state, which it may have written just before it died.
            is_dead = self.pidfds[rank] in ended or cross_memory.is_gone(self.processes[rank])
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
        """From any thread: tell every waiting rank and this rank's own waiting thread.

        To be called before any memory that others read is changed.
        """
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
        for address in self.addresses:  # all of them, since this rank's own waiting thread sleeps on a peer's word
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
    """The same error with the group's rank instead of the team's. `ranks`: the group's ranks, by rank in the team."""
    if lost.peer is None or ranks[lost.peer] == lost.peer:
        return lost
    rank = ranks[lost.peer]
    return PeerLost(str(lost).replace(f"rank {lost.peer} ", f"rank {rank} ", 1), peer=rank)


def is_behind(phase: int, target: int) -> bool:
    """Whether `phase` comes before `target`. Phases have 32 bits and wrap around."""
    return (phase - target) & 0x80000000 != 0


def _is_stopped(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text[text.rindex(")") + 2] in "Tt"  # the last bracket: a program's name may contain brackets too


def _in_words(lost: PeerLost, endings: dict[int, StreamEnding]) -> PeerLost:
    if lost.peer is not None and endings.get(lost.peer) == DIED:
        return _ended(lost.peer)
    return lost
