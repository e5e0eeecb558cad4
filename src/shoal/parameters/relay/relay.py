"""Bytes between workers of a generation that talk only to servers: who gets what, and who is told of a loss. Pure.

Every member of a generation joins it on a connection ("line") of its own. Bytes for a member that has not joined yet
wait, up to a limit for each pair. Events in, deliveries out; `relay_desk` sends them. A line is any hashable value.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from shoal.wire.parameter_messages import Relay, RelayJoin, RelayLost

MAX_WAITING = 64 * 1024 * 1024  # bytes from one member to another that has not joined yet
MAX_JOB_WAITING = 512 * 1024 * 1024  # the same for all pairs of a job together
KEPT_GENERATIONS = 4  # the newest of a job; a member of an older one is told that it is over

Line = Hashable


@dataclass(frozen=True)
class Forwarded:
    """To be sent on a line, in order."""

    line: Line
    note: Relay | RelayLost
    payload: memoryview | None = None


@dataclass
class _Generation:
    workers: frozenset[int]
    lines: dict[int, Line] = field(default_factory=dict)  # of the members that have joined, by worker
    gone: dict[int, str] = field(default_factory=dict)  # members that had joined and are lost, with the reason
    waiting: dict[int, list[tuple[int, memoryview]]] = field(default_factory=dict)  # by receiver: (sender, bytes)
    waiting_bytes: dict[tuple[int, int], int] = field(default_factory=dict)  # by (sender, receiver)


class RelayHub:
    """The relay of one job."""

    def __init__(self) -> None:
        self._generations: dict[int, _Generation] = {}
        self._places: dict[Line, tuple[int, int]] = {}  # generation and worker of each line
        self._newest = 0

    def join(self, line: Line, worker: int, note: RelayJoin) -> tuple[Forwarded, ...]:
        """Deliver the bytes that have waited for the worker, and tell it of members that are lost already."""
        number = note.generation
        if worker not in note.workers or number <= self._newest - KEPT_GENERATIONS:
            reason = f"generation {number} is over" if worker in note.workers else f"worker {worker} is not in it"
            return _all_lost(line, worker, note, reason)
        here = self._generations.setdefault(number, _Generation(frozenset(note.workers)))
        if here.workers != frozenset(note.workers):
            return _all_lost(line, worker, note, f"others say that generation {number} has other workers")
        self._advance(number)
        if worker in here.gone:
            return _all_lost(line, worker, note, f"worker {worker} was lost in generation {number} already")
        older = here.lines.pop(worker, None)
        if older is not None:
            self._places.pop(older, None)
        here.lines[worker] = line
        self._places[line] = (number, worker)
        frames = [
            Forwarded(line, Relay(generation=number, peer=sender), data)
            for sender, data in here.waiting.pop(worker, ())
        ]
        here.waiting_bytes = {pair: size for pair, size in here.waiting_bytes.items() if pair[1] != worker}
        losses = [
            Forwarded(line, RelayLost(generation=number, peer=peer, reason=why)) for peer, why in here.gone.items()
        ]
        return (*frames, *losses)

    def frame(self, line: Line, note: Relay, data: memoryview) -> tuple[Forwarded, ...]:
        """Bytes from a member. Those for a lost member are dropped: the sender has been told of the loss."""
        place = self._places.get(line)
        if place is None or place[0] != note.generation:
            why = "the sender has not joined that generation"
            return (Forwarded(line, RelayLost(generation=note.generation, peer=note.peer, reason=why)),)
        number, worker = place
        here = self._generations[number]
        if note.peer in here.lines:
            return (Forwarded(here.lines[note.peer], Relay(generation=number, peer=worker), data),)
        if note.peer in here.gone:
            return ()
        if note.peer not in here.workers or note.peer == worker:
            why = f"worker {note.peer} is not one of its peers"
            return (Forwarded(line, RelayLost(generation=number, peer=note.peer, reason=why)),)
        pair = (worker, note.peer)
        size = here.waiting_bytes.get(pair, 0) + len(data)
        if size > MAX_WAITING or self.waiting_bytes + len(data) > MAX_JOB_WAITING:
            why = f"it has not joined generation {number}, and {size} bytes wait for it"
            return (Forwarded(line, RelayLost(generation=number, peer=note.peer, reason=why)),)
        here.waiting_bytes[pair] = size
        here.waiting.setdefault(note.peer, []).append((worker, data))
        return ()

    def lost(self, line: Line, reason: str) -> tuple[Forwarded, ...]:
        """A line is closed: tell the members of its generation, those that join later included."""
        place = self._places.pop(line, None)
        if place is None:
            return ()
        number, worker = place
        here = self._generations[number]
        del here.lines[worker]
        here.gone[worker] = reason
        here.waiting.pop(worker, None)
        note = RelayLost(generation=number, peer=worker, reason=reason)
        return tuple(Forwarded(other, note) for other in here.lines.values())

    @property
    def waiting_bytes(self) -> int:
        return sum(sum(here.waiting_bytes.values()) for here in self._generations.values())

    def _advance(self, number: int) -> None:
        self._newest = max(self._newest, number)
        for old in [old for old in self._generations if old <= self._newest - KEPT_GENERATIONS]:
            for line in self._generations.pop(old).lines.values():
                self._places.pop(line, None)


def _all_lost(line: Line, worker: int, note: RelayJoin, reason: str) -> tuple[Forwarded, ...]:
    return tuple(
        Forwarded(line, RelayLost(generation=note.generation, peer=peer, reason=reason))
        for peer in note.workers
        if peer != worker
    )
