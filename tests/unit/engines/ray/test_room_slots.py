"""Which places of a Ray cluster get an agent, under which name and when, for any order of events."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.engines.ray.room_slots import FIRST_PAUSE, LONGEST_PAUSE, RoomSlots

IDS = ("a1b2c3d4e5f6", "a1b2c3d4ffff", "0123456789ab")  # two of them begin alike


class Slots(RuleBasedStateMachine):
    """A cluster that finds nodes, and loses agents, whenever it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = RoomSlots(4)
        self.now = 0.0
        self.asked: set[int] = set()  # slots for which a node is looked for
        self.running: dict[int, str] = {}  # names by slot
        self.names: list[str] = []

    @rule(seconds=st.floats(0, 100))
    def look(self, seconds: float) -> None:
        self.now += seconds
        due = self.slots.due(self.now)
        assert not set(due) & (self.asked | self.running.keys())
        self.asked |= set(due)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), node=st.sampled_from(IDS))
    def place(self, data: st.DataObject, node: str) -> None:
        slot = data.draw(st.sampled_from(sorted(self.asked)))
        self.asked.remove(slot)
        self.running[slot] = self.slots.placed(slot, node, self.now)
        assert self.running[slot].startswith(node[:8])
        self.names.append(self.running[slot])

    @precondition(lambda self: self.asked or self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted({*self.asked, *self.running})))
        assert self.slots.ended(slot, self.now) == self.running.pop(slot, "")
        self.asked.discard(slot)
        assert slot not in self.slots.due(self.now)

    @invariant()
    def every_slot_is_filled_or_will_be(self) -> None:
        empty = 4 - len(self.asked) - len(self.running)
        due = self.slots.next_due
        assert (due is None) == (empty == 0)
        assert due is None or due <= self.now + LONGEST_PAUSE

    @invariant()
    def no_name_is_used_twice(self) -> None:
        assert len(set(self.names)) == len(self.names)


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=40, stateful_step_count=30)


@given(st.integers(1, 20))
def test_pauses_grow_while_agents_end_at_once_and_are_short_again_after_one_that_lasted(losses: int) -> None:
    slots, now = RoomSlots(1), 0.0
    assert slots.due(now) == [0]
    pauses = []
    for _ in range(losses):
        slots.placed(0, IDS[0], now)
        slots.ended(0, now)
        due = slots.next_due
        assert due is not None
        pauses.append(due - now)
        now = due
        assert slots.due(now) == [0]
    assert pauses[0] == FIRST_PAUSE
    assert all(later == min(2 * earlier, LONGEST_PAUSE) for earlier, later in itertools.pairwise(pauses))
    slots.placed(0, IDS[0], now)
    later = now + LONGEST_PAUSE + 1
    slots.ended(0, later)
    assert slots.next_due == later + FIRST_PAUSE


def test_agents_are_named_after_their_nodes_and_counted_where_there_are_several() -> None:
    slots = RoomSlots(4)
    assert slots.due(0.0) == [0, 1, 2, 3]
    assert [slots.placed(number, node, 0.0) for number, node in enumerate((*IDS, IDS[0]))] == [
        "a1b2c3d4",
        "a1b2c3d4-2",
        "01234567",
        "a1b2c3d4-3",
    ]
