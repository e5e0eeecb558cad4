"""What a server counts about itself, for the keeper and for people."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Sequence
from typing import Protocol

from shoal.parameters.blocks.memory_budget import MemoryBudget
from shoal.parameters.connections.switchboard import Switchboard
from shoal.parameters.ledger.ledger_state import LedgerState
from shoal.wire.keeper_messages import ServerBeat, ServerFigures

MOST_CLOCKS = 1 << 17  # workers, over all jobs, whose clocks a beat reports: its size is limited


class Counted(Protocol):
    """What the figures need of the server."""

    budget: MemoryBudget

    @property
    def held_bytes(self) -> int: ...

    @property
    def applied_updates(self) -> int: ...


class Figures:
    def __init__(self, board: Switchboard) -> None:
        self._board = board
        self._start = time.monotonic()
        self._requests = 0
        self._queue_seconds = 0.0
        self._idle_before = 0.0  # the board's idle seconds at the start of this turn
        self._turn_start = self._start

    def turn(self) -> None:
        """A turn begins; requests that it handles may have waited since the turn before."""
        self._turn_start = time.monotonic()
        self._idle_before = self._board.idle_seconds

    def request(self) -> None:
        """A worker's request is handled. The time of this turn in which the server was not idle is queueing time."""
        self._requests += 1
        waited_for = self._board.idle_seconds - self._idle_before
        self._queue_seconds += max(0.0, time.monotonic() - self._turn_start - waited_for)

    def take(self, server: Counted) -> ServerFigures:
        seconds = time.monotonic() - self._start
        return ServerFigures(
            bytes_in=self._board.bytes_in,
            bytes_out=self._board.bytes_out,
            requests=self._requests,
            updates=server.applied_updates,
            queue_seconds=self._queue_seconds,
            busy_seconds=max(0.0, seconds - self._board.idle_seconds),
            seconds=seconds,
            held_bytes=server.held_bytes,
            limit_bytes=server.budget.limit,
        )


def beat_of(
    figures: ServerFigures, ledgers: Sequence[tuple[str, LedgerState]], unreached: tuple[int, ...]
) -> ServerBeat:
    """What the keeper is told. `ledgers`: those that this server is home of, by job; the first up to `MOST_CLOCKS`."""
    counted = list(itertools.accumulate(len(ledger.clocks.by_worker) for _, ledger in ledgers))
    told = ledgers[: bisect.bisect_right(counted, MOST_CLOCKS)]
    return ServerBeat(
        figures=figures,
        staleness=tuple((job, tuple(ledger.histogram)) for job, ledger in told),
        clocks=tuple(
            (job, tuple((worker, clock.count) for worker, clock in ledger.clocks.by_worker.items()))
            for job, ledger in told
        ),
        unreached=unreached,
    )
