"""Pushes are whole before they are used, stay apart from each other, and what does not fit is refused."""

from __future__ import annotations

import pytest
import torch

from shoal.errors import ServerRefused
from shoal.parameters import texts
from shoal.parameters.blocks.byte_views import bytes_of, tensor_over
from shoal.parameters.blocks.memory_budget import MemoryBudget, SpaceBudget
from shoal.parameters.blocks.part_layout import PartLayout, part_order
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.server.updates.staging import StagedPushes
from shoal.transport.memory.arena import RESERVED, Arena, PeerArena
from shoal.wire.parameter_messages import Stage, StageEnd
from shoal.wire.tables import PushId, TableSpec
from support.shards import Using, no_limit, table_of

ONE, TWO = PushId(1, 1), PushId(2, 1)
TABLE = table_of([(2500,), (100,)], [("SGD", [{"lr": 0.1}, {"lr": 0.1}])], owners=[(0, 0), (0, 1)])  # 3 and 1 blocks
GRADIENT = torch.arange(2600.0)


def layout_of(table: TableSpec = TABLE) -> PartLayout:
    return PartLayout(table, part_order(table, range(len(blocks_of(table)))))


def staging_of(budget: MemoryBudget | None = None, quota: int = 0) -> StagedPushes:
    return StagedPushes(
        TABLE, layout_of(), no_limit() if budget is None else SpaceBudget(budget, "job", quota, Using())
    )


def stage(push: PushId, first: int, last: int, **more: object) -> Stage:
    return Stage(push=push, view=1, keys=b"", first=first, last=last, **more)  # type: ignore[arg-type]  # by the test


def end(push: PushId, size: int = 10400) -> StageEnd:
    return StageEnd(request=1, push=push, view=1, size=size)


def receive(staging: StagedPushes, note: Stage, data: memoryview) -> None:
    staging.room(note, len(data))[:] = data
    staging.arrived(note)


def send_all(staging: StagedPushes, push: PushId, scale: float = 1.0) -> None:
    data = bytes_of(GRADIENT * scale)
    offsets = [layout_of().offset(place) for place in range(5)]
    for first, last in [(1, 3), (3, 4), (0, 1)]:  # in any order
        receive(staging, stage(push, first, last), data[offsets[first] : offsets[last]])


def test_a_push_is_whole_when_all_its_bytes_came() -> None:
    staging = staging_of()
    send_all(staging, ONE)
    push = staging.end(end(ONE))
    first, second = layout_of().units
    for unit, wanted in [(first, GRADIENT[:2500]), (second, GRADIENT[2500:])]:
        gradient = push.gradient(unit)
        assert gradient is not None and torch.equal(gradient, wanted)
    assert not push.uses_arena and push.is_complete


def test_gradients_in_a_workers_arena_are_read_there_in_any_pieces() -> None:
    arena = Arena.create(RESERVED + 16384)
    peer = PeerArena.open(arena.offer)
    assert peer is not None
    staging, mapped = staging_of(), tensor_over(peer.memory)
    arena.memory[RESERVED : RESERVED + 10400] = bytes_of(GRADIENT)
    offsets = [layout_of().offset(place) for place in range(5)]
    for first, last in [(0, 2), (2, 3), (3, 4)]:
        staging.place(stage(ONE, first, last, place=RESERVED + offsets[first]), mapped)
    push = staging.end(end(ONE))
    assert push.uses_arena and staging.held_bytes == 0
    first_unit, second_unit = layout_of().units
    one, other = push.gradient(first_unit), push.gradient(second_unit)
    assert one is not None and other is not None
    assert torch.equal(one, GRADIENT[:2500]) and torch.equal(other, GRADIENT[2500:])
    assert other.data_ptr() == mapped.data_ptr() + RESERVED + 10000, "it is not copied"
    peer.close()
    arena.close()  # the worker is gone; what is staged stays
    assert torch.equal(other, GRADIENT[2500:])


@pytest.mark.parametrize("place", [-1, 1, RESERVED + 2, 16384 - 400, 1 << 60])
def test_places_outside_an_arena_or_between_elements_are_refused(place: int) -> None:
    staging, arena = staging_of(), torch.zeros(16384, dtype=torch.uint8)
    with pytest.raises(ServerRefused, match="bytes at") as caught:
        staging.place(stage(ONE, 0, 3, place=place), arena)
    assert caught.value.kind == "bad-request"


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (0, 5), (2, 2), (3, 1)])
def test_ranges_outside_the_key_list_are_refused(first: int, last: int) -> None:
    with pytest.raises(ServerRefused, match="of a list of 4"):
        staging_of().room(stage(ONE, first, last), 4096)
    with pytest.raises(ServerRefused, match="of a list of 4"):
        staging_of().place(stage(ONE, first, last, place=0), torch.zeros(9999, dtype=torch.uint8))


def test_wrong_sizes_are_refused() -> None:
    staging = staging_of()
    with pytest.raises(ServerRefused, match="4095 bytes came for blocks that have 4096"):
        staging.room(stage(ONE, 0, 1), 4095)
    send_all(staging, ONE)
    with pytest.raises(ServerRefused, match="ends after 10396 bytes, and 10400 came"):
        staging.end(end(ONE, 10396))


def test_blocks_that_come_twice_are_refused() -> None:
    staging = staging_of()
    send_all(staging, ONE)
    with pytest.raises(ServerRefused, match="staged twice"):
        staging.room(stage(ONE, 2, 3), layout_of().offset(3) - layout_of().offset(2))


def test_a_unit_in_part_is_refused_and_one_without_gradient_is_left_out() -> None:
    staging = staging_of()
    receive(staging, stage(ONE, 0, 1), bytes_of(GRADIENT[:1024]))
    with pytest.raises(ServerRefused, match="1 of the 3 blocks"):
        staging.end(end(ONE, 4096))
    receive(staging, stage(TWO, 3, 4), bytes_of(GRADIENT[2500:]))
    push = staging.end(end(TWO, 400))
    first, second = layout_of().units
    assert push.gradient(first) is None and push.gradient(second) is not None


def test_a_push_does_not_end_while_bytes_are_under_way() -> None:
    staging = staging_of()
    staging.room(stage(ONE, 3, 4), 400)
    with pytest.raises(ServerRefused, match="400 bytes, and 0 came"):
        staging.end(end(ONE, 400))


def test_memory_is_used_again_but_not_while_bytes_still_come_into_it() -> None:
    staging = staging_of()
    send_all(staging, ONE)
    assert staging.held_bytes == 10400
    assert staging.drop(ONE) is not None and staging.find(ONE) is None
    assert staging.held_bytes == 10400, "kept for the next push"
    unfinished = staging.room(stage(TWO, 3, 4), 400)
    assert staging.drop(TWO) is not None
    assert staging.held_bytes == 0
    third = PushId(3, 1)
    send_all(staging, third)
    unfinished[:] = bytes(400)  # a slow sender of the dropped push
    staging.arrived(stage(TWO, 3, 4))
    gradient = staging.end(end(third)).gradient(layout_of().units[1])
    assert gradient is not None and torch.equal(gradient, GRADIENT[2500:])
    assert staging.of_worker(3) == (third,) and staging.of_worker(2) == ()
    assert staging.drop(TWO) is None


def test_pushes_of_several_workers_stay_apart() -> None:
    staging = staging_of()
    send_all(staging, ONE)
    send_all(staging, TWO, scale=2.0)
    unit = layout_of().units[0]
    one, two = staging.end(end(ONE)).gradient(unit), staging.end(end(TWO)).gradient(unit)
    assert one is not None and two is not None and torch.equal(2 * one, two)


def test_a_server_without_room_refuses_with_its_figures() -> None:
    budget = MemoryBudget(4, 3 << 20, lambda: (3 << 20) - 10000)
    with pytest.raises(ServerRefused) as caught:
        staging_of(budget).room(stage(ONE, 0, 1), 4096)
    said = texts.no_room(4, "a push", wanted=10400, held=(3 << 20) - 10000, limit=3 << 20)
    assert (caught.value.kind, str(caught.value)) == ("memory", said)
    MemoryBudget(4, 3 << 20, lambda: (3 << 20) - 10400).check(10400, "a push")
