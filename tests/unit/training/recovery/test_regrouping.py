"""Into the next generation: what is reported on the way, and by whom."""

from __future__ import annotations

import pytest

from shoal.events import Advised
from shoal.training import texts
from shoal.training.recovery.regrouping import Regrouping
from shoal.values import Standing
from shoal.wire.messages import ExchangeBroken
from support.collectives import succeed
from support.training import Hub, ThreadPeers

REASON = "server 0 is lost"


def broken(generation: int, *, saw_loss: bool) -> ExchangeBroken:
    reason = REASON if saw_loss else "a peer has left"
    return ExchangeBroken(
        generation=generation, step=7, operation="a pull", peer=None, reason=reason, holds=1, must_restore=saw_loss
    )


@pytest.mark.parametrize("finders", [(0,), (1,), (2,), (1, 2), (0, 1, 2)], ids=str)
def test_a_loss_is_reported_once_whoever_found_it(finders: tuple[int, ...]) -> None:
    hub = Hub(size=3)
    hub.members, hub.number = [0, 1, 2], 1
    peers = [ThreadPeers(hub, worker) for worker in range(3)]

    def regroup(worker: int) -> None:
        notice = broken(1, saw_loss=worker in finders)
        Regrouping(peers[worker]).run(notice, Standing(generation=1, step=7))

    succeed(*(lambda worker=worker: regroup(worker) for worker in range(3)))
    for one in peers:
        one.leave_group("the test is over")
    told = [event for event in hub.events if isinstance(event, Advised)]
    assert told == [Advised(worker=finders[0], text=texts.updates_lost(7, REASON))]
