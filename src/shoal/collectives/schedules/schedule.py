"""What a schedule is: who sends which segment to whom in which round, as plain data. Pure.

A program is one rank's part. In every round the rank posts its sends, then takes its receives in order. Posting never
blocks, so a schedule is free of deadlock if every receive has a send that its peer posts without waiting for this rank
(the tests replay all ranks and prove it). The builders are in `ring`, `tree`, `double_tree`, `halving` and
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
    segment: int  # number of a block of the data, or of a run of blocks if the program has runs
    peer: int  # rank that the segment goes to or comes from
    number: int  # the same at both ends; increases along every stream


@dataclass(frozen=True, slots=True)
class Round:
    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does."""

    segments: int  # how many blocks the data is cut into; the same on every rank
    rounds: tuple[Round, ...]
    # Runs of neighbouring blocks that transfers name: first block, and the block after the last. One frame carries a
    # run. Empty: transfers name single blocks. The numbers of runs may differ between ranks.
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
    """Start and stop of every block. Short blocks are spread out, so that no rank sends all the long ones."""
    return list(pairwise(_cut(index, elements, segments) for index in range(segments + 1)))


def _cut(index: int, elements: int, segments: int) -> int:
    return index * elements // segments


def placed(program: Program, ranks: Sequence[int], segments: Sequence[int] = ()) -> Program:
    """A program for positions, turned into one for ranks: position p is rank `ranks[p]`.

    `segments`: the block of each position, if blocks belong to positions. Only for programs without runs.
    """
    assert not (segments and program.runs), "a run of blocks does not stay one when blocks change their places"

    def move(transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        return tuple(
            replace(each, peer=ranks[each.peer], segment=segments[each.segment] if segments else each.segment)
            for each in transfers
        )

    return replace(program, rounds=tuple(Round(move(step.sends), move(step.receives)) for step in program.rounds))


def refined(program: Program, pieces: int) -> Program:
    """The same transfers over data that is cut into `pieces` times as many blocks."""
    runs = program.runs or tuple((block, block + 1) for block in range(program.segments))
    return Program(program.segments * pieces, program.rounds, tuple((a * pieces, b * pieces) for a, b in runs))


def joined(*programs: Program) -> Program:
    """One program after the other. All cut the data alike, and no two of them use the same stream between two ranks."""
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
    """Collects a rank's receives and sends in order, and groups them into rounds.

    Segments are either all numbers of blocks or all ranges of neighbouring blocks.
    """

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        self._sends: list[Transfer] = []
        self._runs: dict[tuple[int, int], int] = {}  # numbers of runs

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


class TransferTimetable:
    """Transfers of one rank by moments that all ranks count alike: a segment sent at one moment arrives at the next.

    A rank works through the moments in order, at each moment lane by lane, and in a lane receives before it sends. So
    schedules that use separate lanes can be combined without deadlock: at every moment all ranks have sent what the
    next moment needs. In one lane a rank sends and receives one segment per moment and peer.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._entries: list[tuple[int, int, Transfer]] = []  # moment, lane; in a lane in the order of the calls

    def send(self, moment: int, lane: int, segment: int, peer: int) -> None:
        self._entries.append((moment, lane, Transfer(Action.SEND, segment, peer, moment * self._lanes + lane)))

    def hurry(self, lane: int) -> None:
        """Move all sends of a lane to the beginning. The lane must have no receives, and no other lane may use its
        streams: a receiver takes the frames of a stream in the order of moments."""
        self._entries = [(-1 if entry[1] == lane else entry[0], *entry[1:]) for entry in self._entries]

    def receive(self, moment: int, lane: int, transfer: tuple[Action, int, int]) -> None:
        """`transfer`: action, segment, peer."""
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
