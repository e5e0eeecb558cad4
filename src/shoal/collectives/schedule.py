"""What a schedule is: who sends which segment to whom in which round, as plain data. Pure.

A program is one rank's part. In every round it posts its sends, then takes its receives in order; posting never blocks,
so a schedule is free of deadlock when every receive is met by a send of the same or an earlier round of its peer's
progress (the tests replay all ranks and prove it). The builders are in `ring` and `tree`; `executor` runs a program.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise


class Action(enum.Enum):
    SEND = "send"
    REDUCE = "receive and reduce into the segment"
    COPY = "receive into the place of the segment"


@dataclass(frozen=True, slots=True)
class Transfer:
    action: Action
    segment: int
    peer: int  # rank it goes to or comes from
    number: int  # the same at both ends; increases along every stream


@dataclass(frozen=True, slots=True)
class Round:
    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does."""

    segments: int  # how many the data are cut into; the same on every rank
    rounds: tuple[Round, ...]


def boundaries(elements: int, segments: int) -> list[tuple[int, int]]:
    """Start and stop of every segment. Short ones lie apart, so that no rank sends all the long ones."""
    cuts = [index * elements // segments for index in range(segments + 1)]
    return list(pairwise(cuts))


class ProgramBuilder:
    """Collects a rank's receives and sends in the order it does them, and groups them into rounds."""

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        self._sends: list[Transfer] = []

    def send(self, segment: int, peer: int, number: int) -> None:
        self._sends.append(Transfer(Action.SEND, segment, peer, number))

    def receive(self, action: Action, segment: int, peer: int, number: int) -> None:
        self._rounds.append(Round(tuple(self._sends), (Transfer(action, segment, peer, number),)))
        self._sends = []

    def build(self, segments: int) -> Program:
        if self._sends:
            self._rounds.append(Round(sends=tuple(self._sends)))
            self._sends = []
        return Program(segments, tuple(self._rounds))
