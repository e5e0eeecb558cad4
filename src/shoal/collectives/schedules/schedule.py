"""What a schedule is: who sends which segment to whom in which round, as plain data. Pure.

A program is one rank's part. In every round it posts its sends, then takes its receives in order; posting never blocks,
so a schedule is free of deadlock when every receive is met by a send of the same or an earlier round of its peer's
progress (the tests replay all ranks and prove it). The builders are in `ring`, `tree`, `double_tree`, `halving` and
`hierarchical`; `choice` picks one; `executor` runs it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


class Action(enum.Enum):
    SEND = "send"
    REDUCE = "receive and reduce into the segment"
    COPY = "receive into the place of the segment"


@dataclass(frozen=True, slots=True)
class Transfer:
    action: Action
    segment: int  # a block of the data, or one of the program's runs of blocks where it has any
    peer: int  # rank it goes to or comes from
    number: int  # the same at both ends; increases along every stream


@dataclass(frozen=True, slots=True)
class Round:
    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does."""

    segments: int  # how many blocks the data are cut into; the same on every rank
    rounds: tuple[Round, ...]
    # What transfers name: the first of some neighbouring blocks and the one after the last. One frame carries them all.
    # Empty: they name single blocks. Ranks number their runs as they like.
    runs: tuple[tuple[int, int], ...] = ()

    def blocks(self, segment: int) -> range:
        """The blocks that a transfer's segment stands for."""
        return range(*self.runs[segment]) if self.runs else range(segment, segment + 1)

    def bounds(self, elements: int) -> list[tuple[int, int]]:
        """Start and stop of every segment that transfers name, in elements of the tensor."""
        if not self.runs:
            return boundaries(elements, self.segments)
        return [
            (_cut(first, elements, self.segments), _cut(stop, elements, self.segments)) for first, stop in self.runs
        ]


def boundaries(elements: int, segments: int) -> list[tuple[int, int]]:
    """Start and stop of every block. Short ones lie apart, so that no rank sends all the long ones."""
    return list(pairwise(_cut(index, elements, segments) for index in range(segments + 1)))


def _cut(index: int, elements: int, segments: int) -> int:
    return index * elements // segments


def placed(program: Program, ranks: Sequence[int], segments: Sequence[int] = ()) -> Program:
    """The program of a position, for the rank that has it: its peers are `ranks[position]`.

    `segments`: where blocks belong to positions, the block of each. Only for programs without runs.
    """
    assert not (segments and program.runs), "a run of blocks does not stay one when blocks change their places"

    def move(transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        return tuple(
            replace(each, peer=ranks[each.peer], segment=segments[each.segment] if segments else each.segment)
            for each in transfers
        )

    return replace(program, rounds=tuple(Round(move(step.sends), move(step.receives)) for step in program.rounds))


def refined(program: Program, pieces: int) -> Program:
    """The same transfers over data that are cut `pieces` times as finely."""
    runs = program.runs or tuple((block, block + 1) for block in range(program.segments))
    return Program(program.segments * pieces, program.rounds, tuple((a * pieces, b * pieces) for a, b in runs))


def joined(*programs: Program) -> Program:
    """One after the other, over data that all of them cut alike. No stream between two ranks serves several of them."""
    builder = ProgramBuilder()
    for program in programs:
        assert program.segments == programs[0].segments
        for step in program.rounds:
            for send in step.sends:
                builder.send(program.blocks(send.segment), send.peer, send.number)
            for receive in step.receives:
                builder.receive(receive.action, program.blocks(receive.segment), receive.peer, receive.number)
    return builder.build(programs[0].segments)


class ProgramBuilder:
    """Collects a rank's receives and sends in the order it does them, and groups them into rounds.

    All segments are given as numbers of blocks, or all as ranges of neighbouring blocks.
    """

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        self._sends: list[Transfer] = []
        self._runs: dict[tuple[int, int], int] = {}  # with their numbers

    def send(self, segment: int | range, peer: int, number: int) -> None:
        self._sends.append(Transfer(Action.SEND, self._named(segment), peer, number))

    def receive(self, action: Action, segment: int | range, peer: int, number: int) -> None:
        self._rounds.append(Round(tuple(self._sends), (Transfer(action, self._named(segment), peer, number),)))
        self._sends = []

    def build(self, segments: int) -> Program:
        if self._sends:
            self._rounds.append(Round(sends=tuple(self._sends)))
            self._sends = []
        return Program(segments, tuple(self._rounds), tuple(self._runs))

    def _named(self, segment: int | range) -> int:
        if isinstance(segment, int):
            return segment
        return self._runs.setdefault((segment.start, segment.stop), len(self._runs))


class Timetable:
    """Transfers of one rank by moments that all ranks count alike: what is sent at one is received at the next.

    A rank does what it has in the order of moments, at each moment lane by lane, and in a lane receives before it
    sends. So whatever is put together in lanes of its own is free of deadlock: at any moment all ranks have sent
    what the next one needs. In one lane a rank sends and receives one segment per moment and peer.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._entries: list[tuple[int, int, Transfer]] = []  # moment, lane; in a lane in the order of the calls

    def send(self, moment: int, lane: int, segment: int, peer: int) -> None:
        self._entries.append((moment, lane, Transfer(Action.SEND, segment, peer, moment * self._lanes + lane)))

    def hurry(self, lane: int) -> None:
        """Send what is in a lane before anything else. The lane must have nothing to receive, and its streams to
        itself: a receiver takes what a stream brings in the order of moments."""
        self._entries = [(-1 if entry[1] == lane else entry[0], *entry[1:]) for entry in self._entries]

    def receive(self, moment: int, lane: int, transfer: tuple[Action, int, int]) -> None:
        """`transfer`: what is done, segment, peer."""
        number = (moment - 1) * self._lanes + lane
        self._entries.append((moment, lane, Transfer(*transfer, number)))

    def build(self, segments: int) -> Program:
        builder = ProgramBuilder()
        for _, _, each in sorted(self._entries, key=lambda entry: entry[:2]):
            if each.action is Action.SEND:
                builder.send(each.segment, each.peer, each.number)
            else:
                builder.receive(each.action, each.segment, each.peer, each.number)
        return builder.build(segments)
