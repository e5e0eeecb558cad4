"""Thousands of members in the pure core: many deaths at once are one event, and heartbeats cost next to nothing."""

from __future__ import annotations

import pytest

from shoal.job_config import JobConfig
from shoal.membership.core.core import TICK, MembershipCore
from shoal.membership.core.protocol import Arrived, Closed, Input, Send, Tick
from shoal.values import Generation
from shoal.wire.messages import PROTOCOL_VERSION, ExchangeBroken, Formed, Heartbeat, ProcessExited, Watch
from support.membership import join

MEMBERS = 2000
WATCHER = 10**6


def started() -> MembershipCore:
    core = MembershipCore(JobConfig(workers=MEMBERS), now=0.0)
    core.handle(Arrived(WATCHER, Watch(version=PROTOCOL_VERSION)), 0.0)
    for worker in range(MEMBERS):
        core.handle(Arrived(worker, join(worker)), 0.0)
    return core


def formed(core: MembershipCore, happened: Input, now: float) -> list[Generation]:
    return [
        instruction.message.generation
        for instruction in core.handle(happened, now)
        if isinstance(instruction, Send) and isinstance(instruction.message, Formed)
    ]


@pytest.mark.parametrize("survivors_report", [True, False], ids=["survivors report", "survivors are busy"])
@pytest.mark.parametrize(
    "exits_are_seen",
    [True, pytest.param(False, marks=pytest.mark.long)],
    ids=["exits are seen", "exits are not seen"],
)
def test_half_of_all_members_die_at_once_and_make_one_generation(survivors_report: bool, exits_are_seen: bool) -> None:
    core = started()
    dead, living = range(0, MEMBERS, 2), range(1, MEMBERS, 2)
    broken = ExchangeBroken(generation=1, step=3, operation="all-reduce", peer=0, reason="reset", holds=1)
    news: list[Input] = []
    for victim, survivor in zip(dead, living, strict=True):  # the news come mixed
        news.append(Closed(victim))
        if exits_are_seen:
            news.append(Arrived(WATCHER, ProcessExited(worker=victim, code=-9, reason="")))
        if survivors_report or survivor == 1:
            news.append(Arrived(survivor, broken))
    now = 1.0
    found: list[Generation] = []
    for count, happened in enumerate(news):
        found += formed(core, happened, now)
        if count % 100 == 0:  # it takes a third of a second
            now += 0.01
            found += formed(core, Tick(), now)
    for _ in range(30):
        now += TICK
        found += formed(core, Tick(), now)
    assert [generation.number for generation in found] == [2]
    assert [member.worker for member in found[0].members] == list(living)
    assert found[0].holders == tuple(living)


def test_a_heartbeat_is_answered_with_nothing() -> None:
    core = started()
    for worker in range(MEMBERS):
        assert core.handle(Arrived(worker, Heartbeat(generation=1, step=1, operation="forward")), 0.5) == ()
