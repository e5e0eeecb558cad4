"""What a job of a thousand nodes costs each node: messages and connections whose number does not grow with theirs."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from shoal.collectives.schedules.choice import Chooser
from shoal.links.plan import fixed_plan
from shoal.membership.core.core import MembershipCore
from shoal.membership.core.protocol import Arrived, Input, Instruction, Send
from shoal.plan import prediction
from shoal.plan.cluster_plan import ClusterPlan
from shoal.settings.all_reduce_settings import SCHEDULES
from shoal.transport.mesh.first_peers import first_peers
from shoal.wire.messages import Beat, Heartbeat, Join

WHILE_TIME_PASSES = (Heartbeat, Beat)  # as many as seconds pass, whatever happens
FAILURE_EVERY = 120.0  # seconds, in the whole cluster


class CountingCore(MembershipCore):
    """Counts the messages to and from each worker, apart from those that are sent while time passes."""

    made: CountingCore

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        CountingCore.made = self
        self.workers: set[int] = set()  # clients
        self.heard: Counter[int] = Counter()  # messages from each client
        self.told: Counter[int] = Counter()  # and to each

    def handle(self, happened: Input, now: float) -> tuple[Instruction, ...]:
        if isinstance(happened, Arrived) and not isinstance(happened.message, WHILE_TIME_PASSES):
            self.heard[happened.client] += 1
            if isinstance(happened.message, Join):
                self.workers.add(happened.client)
        instructions = super().handle(happened, now)
        for one in instructions:
            if isinstance(one, Send) and not isinstance(one.message, WHILE_TIME_PASSES):
                self.told.update(one.clients)
        return instructions


def most_messages(nodes: int, patch: pytest.MonkeyPatch) -> tuple[float, float]:
    """The most messages that the coordinator got from one node, and sent to one, for each generation."""
    patch.setattr(prediction, "MembershipCore", CountingCore)
    plan = ClusterPlan(nodes=nodes, mtbf=nodes * FAILURE_EVERY, restart=20.0, hours=0.5)
    found = prediction.predict(plan)
    assert found.failures > 5
    assert found.newcomers > 5
    assert found.generations > 10
    core = CountingCore.made
    assert len(core.workers) >= nodes
    return (
        max(core.heard[client] for client in core.workers) / found.generations,
        max(core.told[client] for client in core.workers) / found.generations,
    )


def test_start_and_regrouping_take_a_number_of_messages_per_node_that_does_not_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = most_messages(100, monkeypatch), most_messages(1000, monkeypatch)
    # A report and a generation each, a wish where somebody is let in; `Join`, `Welcome` and `Ready` once.
    for per_generation in (*few, *many):
        assert per_generation < 2.5
    assert many[0] <= few[0] * 1.1
    assert many[1] <= few[1] * 1.1


SIZES = (1024, 64 * 1024, 64 * 1024 * 1024)  # bytes of tensors
ON_A_HOST = 8  # ranks, for hierarchical schedules
MOST_RANKS = 40  # of a large job that are looked at


@cache
def most_connections(schedule: str, nodes: int) -> int:
    """The most connections of one rank: those that it begins with, and those that its tensors' ways need.

    Later connections are made for one direction, so that a pair may have two.
    """
    hosts = tuple(tuple(range(first, min(first + ON_A_HOST, nodes))) for first in range(0, nodes, ON_A_HOST))
    plan = fixed_plan(hosts) if schedule == "hierarchical" else None
    most = 0
    for rank in {*range(MOST_RANKS // 2), *range(0, nodes, nodes // (MOST_RANKS // 2)), nodes - 1}:
        chooser = Chooser(schedule, nodes, rank, plan)
        programs = [*map(chooser.all_reduce, SIZES), chooser.broadcast(1024, 0), chooser.all_gather()]
        first = first_peers(rank, nodes)
        sends = {each.peer for program in programs for step in program.rounds for each in step.sends} - first
        receives = {each.peer for program in programs for step in program.rounds for each in step.receives} - first
        most = max(most, len(first) + len(sends) + len(receives))
    return most


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_connections_of_a_rank_do_not_grow_with_the_number_of_ranks(schedule: str) -> None:
    few, many = most_connections(schedule, 100), most_connections(schedule, 1000)
    if schedule == "halving-doubling":  # its number of rounds is the logarithm of the number of ranks
        assert many - few <= 4 * (10 - 7)
        assert many <= 5 + 4 * 10
    else:
        assert many <= few + 1
        assert many <= 16
