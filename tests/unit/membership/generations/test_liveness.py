"""Whose silence is taken for a death, and what proves that a silent worker lives."""

from __future__ import annotations

from shoal.membership.core.roster import Worker
from shoal.membership.generations.liveness import Ear, listen
from shoal.values import Address
from shoal.wire.messages import PROTOCOL_VERSION, Join


def members() -> list[Worker]:
    """Worker 0 was last heard at 10 s; worker 1 is heard all the time and has just made a step."""
    return [worker(0, heard=10.0, advanced=9.0), worker(1, heard=30.0, advanced=29.0)]


def worker(number: int, *, heard: float, advanced: float) -> Worker:
    address = Address("127.0.0.1", 1)
    join = Join(version=PROTOCOL_VERSION, worker=number, host="host", process=1, address=address)
    return Worker(join, client=number, heard=heard, advanced=advanced)


def test_steps_that_need_everybody_prove_that_a_silent_worker_lives() -> None:
    assert listen(members(), 30.0, Ear(limit=5.0, interval=1.0)).silent == {}


def test_where_workers_run_free_the_steps_of_others_prove_nothing() -> None:
    assert set(listen(members(), 30.0, Ear(limit=5.0, interval=1.0, needs_everybody=False)).silent) == {0}
