"""Which node takes a process: spread by slots, servers apart, nobody on a node that is gone, a reason for each."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.engines.nodes.node_placement import Demand, NodePlacement, Place, Waits


def of(*slots: int) -> NodePlacement:
    """Nodes a, b, ... with these slots."""
    placement = NodePlacement()
    for number, its in enumerate(slots):
        assert placement.add_node(chr(ord("a") + number), its) == []
    return placement


def nodes_of(placement: NodePlacement, *demands: Demand) -> list[str]:
    found = [placement.start(demand) for demand in demands]
    return [place.node if isinstance(place, Place) else "" for place in found]


def workers(*numbers: int) -> list[Demand]:
    return [Demand(f"worker {number}") for number in numbers]


def test_workers_are_spread_over_nodes_and_a_full_one_takes_none() -> None:
    assert nodes_of(of(2, 2), *workers(0, 1, 2, 3, 4)) == ["a", "b", "a", "b", ""]
    assert nodes_of(of(1, 4), *workers(0, 1, 2, 3, 4)) == ["b", "a", "b", "b", "b"]


def test_nodes_that_are_equally_good_are_taken_in_their_order_whoever_came_first() -> None:
    placement = NodePlacement()
    for name, order in (("c", 2), ("a", 0), ("b", 1)):
        placement.add_node(name, 2, order=order)
    assert nodes_of(placement, *workers(0, 1, 2, 3)) == ["a", "b", "c", "a"]


def test_each_worker_of_a_node_has_a_slot_of_its_own_and_the_lowest_free_one_is_given_again() -> None:
    placement = of(3)
    slots = [place.slot for place in map(placement.start, workers(0, 1, 2)) if isinstance(place, Place)]
    assert slots == [0, 1, 2]
    placement.end("worker 1")
    again = placement.start(Demand("worker 3"))
    assert isinstance(again, Place)
    assert again.slot == 1


def test_servers_are_kept_apart_and_take_no_slot() -> None:
    placement = of(1, 1)
    servers = [Demand(f"server {number}", takes_slot=False, apart=True) for number in range(3)]
    assert nodes_of(placement, Demand("worker 0"), *servers) == ["a", "b", "a", "b"]
    assert nodes_of(placement, Demand("worker 1")) == ["b"]


def test_after_the_loss_of_a_node_the_next_process_goes_to_another_one() -> None:
    placement = of(4, 4)
    nodes_of(placement, *workers(0, 1, 2, 3))
    assert sorted(placement.remove_node("b")) == ["worker 1", "worker 3"]
    assert nodes_of(placement, *workers(4, 5)) == ["a", "a"]
    assert placement.remove_node("b") == []


def test_whoever_waits_is_placed_in_order_when_a_node_comes_or_a_slot_is_free() -> None:
    placement = NodePlacement()
    waits = placement.start(Demand("worker 0"))
    assert waits == Waits("worker 0", "no node is there")
    placement.start(Demand("worker 1"))
    assert [place.name for place in placement.add_node("a", 1)] == ["worker 0"]
    assert placement.start(Demand("worker 2")) == Waits("worker 2", "all 1 slots of the only node are in use")
    assert [place.name for place in placement.end("worker 0")] == ["worker 1"]
    placement.end("worker 2")  # it is no longer wanted
    assert placement.end("worker 1") == []
    assert placement.waiting == ()


def test_a_decision_says_why() -> None:
    placement = of(2, 4)
    [first] = [placement.start(demand) for demand in workers(0)]
    assert first.reason == "0 of 4 slots of b were in use, no larger part than on the other node"
    server = placement.start(Demand("server 0", takes_slot=False, apart=True))
    assert server.reason == "a has no server yet"
    assert of(2).start(Demand("worker 0")).reason == "a is the only node"


class Changes(RuleBasedStateMachine):
    """Nodes and processes come and go in any order."""

    @initialize()
    def begin(self) -> None:
        self.placement = NodePlacement()
        self.count = 0
        self.where: dict[str, str] = {}  # as the decisions said
        self.slots: dict[str, int] = {}  # by node
        self.takes: dict[str, bool] = {}

    def note(self, places: list[Place]) -> None:
        for place in places:
            assert place.node in self.slots
            assert place.reason
            self.where[place.name] = place.node

    @rule(slots=st.integers(0, 4))
    def come(self, slots: int) -> None:
        self.count += 1
        self.slots[f"n{self.count}"] = slots
        self.note(self.placement.add_node(f"n{self.count}", slots))

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.slots)))
        del self.slots[node]
        lost = self.placement.remove_node(node)
        assert sorted(lost) == sorted(name for name, its in self.where.items() if its == node)
        for name in lost:
            del self.where[name]

    @rule(takes_slot=st.booleans(), apart=st.booleans())
    def start(self, takes_slot: bool, apart: bool) -> None:
        self.count += 1
        name = f"p{self.count}"
        self.takes[name] = takes_slot
        found = self.placement.start(Demand(name, takes_slot, apart))
        if isinstance(found, Place):
            self.note([found])
        else:
            assert found.reason
            assert name in self.placement.waiting

    @precondition(lambda self: self.where or self.placement.waiting)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted({*self.where, *self.placement.waiting})))
        self.where.pop(name, None)
        self.note(self.placement.end(name))

    @invariant()
    def no_node_has_more_workers_than_slots(self) -> None:
        for node, slots in self.slots.items():
            assert sum(self.takes[name] for name, its in self.where.items() if its == node) <= slots

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        used = sum(self.takes[name] for name in self.where)
        for name in self.placement.waiting:
            assert used == sum(self.slots.values()) if self.takes[name] else not self.slots

    @invariant()
    def the_placement_knows_where_everybody_is(self) -> None:
        for name in self.takes:
            assert self.placement.node_of(name) == self.where.get(name)


TestChanges = Changes.TestCase
