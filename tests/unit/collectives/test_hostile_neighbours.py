"""A neighbour that writes anything into its own memory: who reads it gets an error that names it, and never crashes.

The victim works in a process of its own, so that a fault of the processor would be seen and not end the tests.
"""

from __future__ import annotations

import random
import struct
import traceback
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as some

from shoal.collectives.exchanger import Operation
from shoal.collectives.group import Reduction
from shoal.collectives.mailbox.letters import Letter, LetterKind
from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.collectives.memory.memory_exchanger import MemoryExchanger
from shoal.collectives.memory.memory_loops import MemoryWays, statement_of
from shoal.errors import PeerLost, ShoalError, WireError
from shoal.transport.memory.arena import word_at
from shoal.transport.memory.team import Team
from shoal.transport.native_layout import NOTICE_BYTES, NOTICES, OPERATIONS, PHASE, SLOT_BYTES, SLOTS
from shoal.wire.frames import FrameKind
from support.children import in_child
from support.collectives import PATIENCE, in_threads
from support.mailboxes import mailboxes
from support.memory_groups import WAYS, teams

ELEMENTS = 1000
HEAD = struct.Struct("=128sIIdI44x")
# Without shrinking: what fails is printed as it is, and each example costs a team.
quick = settings(
    max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)

counts = some.sampled_from([0, 1, 2, 3, 255, 256, 257, 2**31, 2**32 - 1])
small = some.integers(0, 3) | some.integers(0, 2**32 - 1)
sizes = some.sampled_from([0, 1, 4, 64, 2000, 4000, 4096, 2**20, 2**21 + 4, 2**44 + 1, 2**63, 2**64 - 1])
scales = some.sampled_from([0.0, 1.0, 0.5, float("nan"), float("inf")])
entries = some.lists(some.tuples(some.integers(0, 2**64 - 1), sizes), min_size=3, max_size=3)
notices = some.tuples(counts, small, scales, small, entries)
Notice = tuple[int, int, float, int, list[tuple[int, int]]]
Attacked = tuple[FrameKind, torch.dtype, int]  # operation, type, and from whom a broadcast comes


def operation(kind: FrameKind, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Operation:
    reduction = Reduction.SUM if kind in (FrameKind.ALL_REDUCE, FrameKind.REDUCE_SCATTER) else None
    return Operation(kind, 0, "attacked", dtype, 2 * ELEMENTS, reduction, scale)


def calls(exchanger: MemoryExchanger, kind: FrameKind, dtype: torch.dtype, source: int) -> None:
    own, other = (torch.ones(ELEMENTS).to(dtype) for _ in range(2))
    if kind is FrameKind.ALL_REDUCE:
        exchanger.all_reduce(operation(kind, dtype), [torch.ones(2 * ELEMENTS).to(dtype)])
    elif kind is FrameKind.REDUCE_SCATTER:
        exchanger.reduce_scatter(operation(kind, dtype), own, [other, other])
    elif kind is FrameKind.ALL_GATHER:
        exchanger.all_gather(operation(kind, dtype), [own, other], own.clone())
    elif kind is FrameKind.ALL_TO_ALL:
        exchanger.all_to_all(operation(kind, dtype), [own, other], [own.clone(), other.clone()])
    else:
        exchanger.broadcast_all(operation(kind, dtype), [own, other], source)


KINDS = [
    FrameKind.ALL_REDUCE,
    FrameKind.REDUCE_SCATTER,
    FrameKind.ALL_GATHER,
    FrameKind.ALL_TO_ALL,
    FrameKind.BROADCAST,
]


attacks = some.tuples(
    some.sampled_from(KINDS), some.sampled_from([torch.float32, torch.int32, torch.float16]), some.integers(0, 1)
)


def write(team: Team, notice: bytes) -> None:
    """As this rank's next notice, with phases enough that nobody waits for it."""
    start = NOTICES + team.word(team.rank, OPERATIONS) % 2 * NOTICE_BYTES
    team.arena(team.rank)[start : start + len(notice)] = notice
    word_at(team.addresses[team.rank] + PHASE).value += 1 << 20


def suffers(made: Sequence[Team], ways: MemoryWays, notice: bytes, attacked: Attacked) -> None:
    write(made[1], notice)
    exchanger = MemoryExchanger(made[0], ways, 1)
    (error,) = in_threads(lambda: calls(exchanger, *attacked))
    if isinstance(error, BaseException):
        assert isinstance(error, ShoalError), "".join(traceback.format_exception(error))
        assert "rank 1 " in str(error), error


def packed(attacked: Attacked, notice: Notice) -> bytes:
    """With the statement that the victim expects, so that the rest is looked at."""
    (kind, dtype, source), (count, staged, scale, apart, said) = attacked, notice
    head = HEAD.pack(statement_of(operation(kind, dtype), 1, source), count, staged, scale, apart)
    return head + b"".join(struct.pack("=QQ", *entry) for entry in said)


@pytest.mark.parametrize("way", list(WAYS))
def test_numbers_that_cannot_be_are_refused(way: str) -> None:
    @quick
    @given(attacks, notices)
    @example((FrameKind.BROADCAST, torch.float32, 0), (0, 1, 1.0, 1, []))  # divides by zero, if it is believed
    @example((FrameKind.BROADCAST, torch.float32, 1), (2, 1, 1.0, 2, [(0, 4000), (0, 4000)]))
    @example((FrameKind.REDUCE_SCATTER, torch.float32, 0), (2, 1, 1.0, 2, [(0, 4000), (0, 4000)]))
    @example((FrameKind.REDUCE_SCATTER, torch.int32, 0), (2, 1, 0.5, 0, [(0, 4000), (0, 4000)]))  # no loop scales that
    @example((FrameKind.ALL_REDUCE, torch.int32, 0), (1, 0, 0.5, 0, [(0, 8000)]))
    def check(attacked: Attacked, notice: Notice) -> None:
        with teams(2) as made:
            suffers(made, WAYS[way], packed(attacked, notice), attacked)

    in_child(check)


@pytest.mark.parametrize("way", list(WAYS))
def test_bytes_of_any_kind_are_refused(way: str) -> None:
    @quick
    @given(attacks, some.integers(0, 2**32))
    def check(attacked: Attacked, seed: int) -> None:
        with teams(2) as made:
            suffers(made, WAYS[way], random.Random(seed).randbytes(NOTICE_BYTES), attacked)

    in_child(check)


@pytest.mark.parametrize("way", [way for way in WAYS if way.endswith("slots")])
def test_a_notice_that_changes_in_the_middle_of_an_operation_is_used_as_it_was_copied(way: str) -> None:
    """What is too long for a slot comes in two rounds; between them the neighbour says something else."""
    size = SLOT_BYTES + 4096
    attacked = Operation(FrameKind.ALL_GATHER, 0, "attacked", torch.uint8, 2 * size)
    statement = statement_of(attacked, 1, 0)
    entry = struct.pack("=QQ", 0, size)
    outputs = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
    with teams(2) as made:
        victim, hostile = MemoryExchanger(made[0], WAYS[way], 1), made[1]
        memory = hostile.arena(1)

        def attack() -> None:
            memory[SLOTS : SLOTS + SLOT_BYTES] = b"\1" * SLOT_BYTES
            memory[NOTICES : NOTICES + HEAD.size + 16] = HEAD.pack(statement, 1, 1, 1.0, 0) + entry
            hostile.signal()
            hostile.await_phase(0, 2)  # it has taken the first round
            memory[NOTICES : NOTICES + HEAD.size + 32] = HEAD.pack(statement, 2, 1, 1.0, 0) + 2 * entry
            memory[SLOTS + SLOT_BYTES : SLOTS + SLOT_BYTES + 4096] = b"\2" * 4096
            hostile.signal()

        own = torch.full((size,), 7, dtype=torch.uint8)
        assert in_threads(lambda: victim.all_gather(attacked, outputs, own), attack) == [None, None]
    assert (outputs[0] == 7).all()
    assert (outputs[1][:SLOT_BYTES] == 1).all() and (outputs[1][SLOT_BYTES:] == 2).all()


@pytest.mark.parametrize("lane", ["memory", "staged"])
def test_a_ring_of_any_bytes_fails_its_reader_with_the_name_of_its_writer(lane: str) -> None:
    @quick
    @given(some.integers(0, 2**32), some.sampled_from([64, 128, 4096, 65536, 2**19, 2**19 + 64, 2**40, 2**64 - 64, 77]))
    def check(seed: int, written: int) -> None:
        with mailboxes(lane, 2) as made:
            victim, hostile = made
            own = hostile._progress._lanes[0]
            writer = own._neighbours[0].writer
            place = writer._place
            place.memory[place.offset : place.offset + 4096] = random.Random(seed).randbytes(4096)
            writer._written.set(written)
            error = outcome(victim)
            assert isinstance(error, WireError), error
            assert "rank 1 " in str(error)

    in_child(check)


def outcome(victim: Mailbox) -> BaseException | None:
    delivery = victim.receive(torch.zeros(4), 1)
    (error,) = in_threads(lambda: delivery.wait(PATIENCE))
    return error if isinstance(error, BaseException) else None


def test_a_neighbour_that_received_more_than_was_sent_is_named() -> None:
    with mailboxes("staged", 2) as made:
        victim, hostile = made
        hostile._progress._lanes[0].post(0, Letter(LetterKind.TAKEN, size=1 << 30))
        error = outcome(victim)
        assert isinstance(error, WireError) and "rank 1 has received 1073741824 bytes more" in str(error), error


@pytest.mark.parametrize("read", [64 * 10**6, 2**64 - 1])
def test_a_neighbour_that_has_read_more_than_was_written_is_named(read: int) -> None:
    with mailboxes("staged", 2) as made:
        victim, hostile = made
        hostile._progress._lanes[0]._neighbours[0].reader._read.set(read)
        with pytest.raises((WireError, PeerLost), match="rank 1 "):
            for _ in range(100):  # until the ring is full and its end is looked up
                victim.send(torch.zeros(16_000), 1).wait(0.0)
            victim.receive(torch.zeros(1), 1).wait(PATIENCE)
