"""Blocks that move between servers: asked for once, put in place only when that repeats no update."""

from __future__ import annotations

import torch

from shoal.parameters.blocks.block_state import BlockState, pack
from shoal.parameters.blocks.memory_budget import MemoryBudget
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.ledger.effects import Update
from shoal.parameters.ledger.ledger import Ledger
from shoal.parameters.server.space.background import Background
from shoal.parameters.server.space.block_moves import BlockMoves
from shoal.parameters.server.space.job_state import JobState
from shoal.parameters.server.updates.holding import Holding, layout_of
from shoal.wire.keeper_messages import Lost
from shoal.wire.note import Note
from shoal.wire.parameter_messages import Fetch, Fetched
from shoal.wire.tables import TensorSpec
from support.model_tables import server_map, table_of
from support.shards import no_limit

TABLE = table_of([TensorSpec(name="t", shape=(8000,), dtype="float32")])


class Site:
    """Server 1, which others hear nothing of."""

    number = 1
    budget = MemoryBudget(1, 0, lambda: 0)
    background = Background(lambda: None)  # which has no thread before it has something to do

    def __init__(self) -> None:
        self.sent: list[tuple[int, Note, bytes]] = []

    def to_server(self, number: int, note: Note, payload: memoryview | bytes | None = None) -> None:
        self.sent.append((number, note, bytes(payload or b"")))

    def to_keeper(self, note: Note) -> None:
        self.sent.append((-1, note, b""))

    def filled(self) -> None: ...

    def crash_at(self, point: str) -> None: ...


def begun(living: list[int], entries: int) -> tuple[JobState, BlockMoves, Site]:
    """Server 1 joins server 0, which has everything, or died with it."""
    state, site = JobState("job", 1), Site()
    state.map = server_map(living, before=[0], after=living)
    state.table = TABLE
    state.sequencer.ledger = Ledger(number=entries, view=1, has_values=True)
    state.holding = Holding(layout_of(TABLE, state.map, 1), no_limit())
    moves = BlockMoves(state, site)
    moves.begin(state.holding)
    return state, moves, site


def values(blocks: tuple[int, ...]) -> tuple[bytes, memoryview]:
    every = blocks_of(TABLE)
    sizes = [every[block].stop - every[block].start for block in blocks]
    return pack(TABLE, blocks, [BlockState(torch.full((size,), 7.0)) for size in sizes])


def test_blocks_that_are_ahead_wait_until_this_server_is_as_far() -> None:
    state, moves, site = begun([0, 1], entries=3)
    ((source, asked, _),) = site.sent
    assert isinstance(asked, Fetch)
    assert (source, asked.at_least) == (0, 3)
    described, payload = values(asked.blocks)
    note = Fetched(request=1, job="job", view=1, blocks=asked.blocks, applied=5, state=described)
    moves.fetched(0, note, payload)
    assert not moves.advance()
    assert state.sequencer.ledger is not None and state.holding is not None
    for number in (4, 5):
        state.sequencer.ledger.number = number
        state.queue.add(Update(number=number, pushes=(), terms=(), scales=(), lr_factor=1.0, updates=number))
    assert not moves.advance()
    state.queue.finish()
    assert not moves.advance()
    assert state.holding.shard.absent()
    state.queue.finish()
    assert moves.advance()
    assert not state.holding.shard.absent()
    assert moves.are_over
    assert moves.size == state.holding.layout.size
    state.holding.close()


def test_what_was_asked_is_asked_again_on_a_new_connection_and_used_once() -> None:
    state, moves, site = begun([0, 1], entries=3)
    moves.connected(0)
    (first, again) = [note for _, note, _ in site.sent]
    assert first == again
    assert isinstance(first, Fetch)
    described, payload = values(first.blocks)
    note = Fetched(request=1, job="job", view=1, blocks=first.blocks, applied=3, state=described)
    moves.fetched(0, note, payload)
    assert moves.advance()
    moves.fetched(0, note, payload)
    assert not moves.advance()
    assert state.holding is not None
    state.holding.close()


def test_a_fetch_is_answered_when_this_server_is_as_far_and_between_two_entries() -> None:
    state, moves, site = begun([0, 1], entries=3)
    assert state.holding is not None and state.sequencer.ledger is not None
    asked = site.sent.pop()[1]
    assert isinstance(asked, Fetch)
    described, payload = values(asked.blocks)
    moves.fetched(0, Fetched(request=1, job="job", view=1, blocks=asked.blocks, applied=3, state=described), payload)
    moves.advance()
    moves.fetch(0, Fetch(request=9, job="job", view=1, blocks=asked.blocks, at_least=4))
    assert not site.sent
    state.sequencer.ledger.number = 4
    state.queue.add(Update(number=4, pushes=(), terms=(), scales=(), lr_factor=1.0, updates=4))
    state.queue.done = 1
    moves.advance()
    assert not site.sent
    state.queue.finish()
    moves.advance()
    ((receiver, answer, sent),) = site.sent
    assert isinstance(answer, Fetched)
    assert (receiver, answer.request, answer.applied, answer.blocks) == (0, 9, 4, asked.blocks)
    assert sent == bytes(payload)
    state.holding.close()


def test_blocks_that_nobody_has_are_reported() -> None:
    state, moves, site = begun([1], entries=3)
    assert state.holding is not None
    ((_, note, _),) = site.sent
    assert isinstance(note, Lost)
    assert (note.blocks, note.size) == (len(blocks_of(TABLE)), 32_000)
    assert moves.are_over
    state.holding.close()


def test_a_block_that_nobody_has_is_told_of_once_whatever_the_replicas() -> None:
    table = table_of([TensorSpec(name="t", shape=(80_000,), dtype="float32")])
    made = server_map([1, 2, 3], before=[0], after=[1, 2, 3], replicas=2)
    holdings = [Holding(layout_of(table, made, number), no_limit()) for number in (1, 2, 3)]
    told = [block for holding in holdings for block in holding.lost()]
    assert sorted(told) == list(range(len(blocks_of(table))))
    for holding in holdings:
        holding.close()
