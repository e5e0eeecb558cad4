"""A whole job on simulated servers, with deaths, zombies and broken connections at random moments.

After each run: the loop is at its end, every position was committed once, no answer that a worker heard is taken back,
no push is applied twice or in part, and all servers have the same ledger. Reads are checked as they happen.
"""

from __future__ import annotations

import random

import pytest

from shoal.parameters.ledger.effects import Reply, Update
from shoal.parameters.ledger.ledger import Ledger
from shoal.wire.ledger_entries import AnyAnswer, Begin, Committed, Push
from shoal.wire.tables import LoopTerms, PushId
from support.simulated_job import SimulatedJob
from support.simulated_servers import Network, SimulatedGroup
from support.simulated_workers import Terms


def simulate(seed: int) -> None:
    rng = random.Random(seed)
    network = Network(rng)
    replicas = rng.choice((1, 2, 2, 3))
    group = SimulatedGroup(network, rng.randint(replicas, replicas + 2), replicas)
    is_synchronous = rng.random() < 0.35
    loop = LoopTerms(
        loop=1,
        first_epoch=rng.choice((0, 3)),
        epochs=rng.randint(1, 3),
        samples=rng.randint(20, 200),
        update=rng.randint(1, 8),
    )
    terms = Terms(
        mode="synchronous" if is_synchronous else "asynchronous",
        staleness=None if is_synchronous else rng.choice((None, 0, 1, 4)),
        loop=loop,
        steps=rng.randint(5, 40),
        calls=rng.choice((0.0, 0.02, 0.2)),
        is_forgetful=rng.random() < 0.3,
    )
    job = SimulatedJob(group, rng.randint(1, 4), terms)
    strike(job, rng)
    network.run()
    assert job.is_over, f"nothing happens any more after {network.now:.1f} seconds"
    check(job, terms)


def strike(job: SimulatedJob, rng: random.Random) -> None:
    """Faults at random moments of the first seconds."""
    group, network, length = job.group, job.network, rng.choice((2.0, 5.0, 10.0))
    faults = [
        (rng.choice((0, 1, 2, 4)), lambda: group.strike(kill=True, replace=rng.random() < 0.7)),
        (rng.choice((0, 0, 1, 2)), lambda: group.strike(kill=False, replace=rng.random() < 0.7)),
        (rng.choice((0, 0, 1)), lambda: None if job.is_over else group.add()),
        (rng.choice((0, 2, 5)), group.cut),
        (rng.choice((0, 1, 3)), lambda: job.strike(kill=True)),
        (rng.choice((0, 0, 1, 2)), lambda: job.strike(kill=False)),
        (rng.choice((0, 0, 1)), job.join),
    ]
    for count, fault in faults:
        for _ in range(count):
            network.after(rng.uniform(0.0, length), fault)


def check(job: SimulatedJob, terms: Terms) -> None:
    servers = [server for server in job.group.members if server.is_running]
    assert len(servers) == len(job.group.members), "who is not there any more is not in the map either"
    logs = [server.sequencer.log for server in servers]
    assert all(log == logs[0] for log in logs), "servers disagree about entries"
    assert all(server.sequencer.ledger == servers[0].sequencer.ledger for server in servers)
    ledger, log = Ledger(), logs[0]
    said: dict[tuple[int, int], AnyAnswer] = {}
    updates: list[tuple[int, tuple[PushId, ...]]] = []
    for number in range(1, len(log) + 1):
        for effect in ledger.apply(number, log[number]):
            if isinstance(effect, Reply):
                said[effect.worker, effect.answer.request] = effect.answer
            elif isinstance(effect, Update):
                updates.append((number, effect.pushes))
    assert ledger == servers[0].sequencer.ledger
    for worker in job.workers.values():
        for request, answer in worker.told.items():
            assert said[worker.number, request] == answer, f"worker {worker.number} was told what is not so"
    check_updates(job, updates)
    pushes = [entry for entry in log.values() if isinstance(entry, Push)]
    committed = {
        (push.worker, push.request): push
        for push in pushes
        if isinstance(said.get((push.worker, push.request)), Committed)
    }
    if terms.mode == "synchronous":
        applied = {push.push: push.step for push in pushes}
        steps = [{applied[push] for push in together} for _, together in updates]
        assert steps == [{step} for step in range(terms.steps)], "every step once, in order"
    else:
        used = [
            (piece.epoch, position)
            for push in committed.values()
            for piece in push.used
            for position in range(piece.start, piece.stop)
        ]
        epochs = range(terms.loop.first_epoch, terms.loop.first_epoch + terms.loop.epochs)
        assert sorted(used) == [(epoch, position) for epoch in epochs for position in range(terms.loop.samples)]
        assert ledger.leases is not None
        assert ledger.leases.is_over


def check_updates(job: SimulatedJob, updates: list[tuple[int, tuple[PushId, ...]]]) -> None:
    """Every server that is left has applied just these, since it has been there."""
    every = [push for _, pushes in updates for push in pushes]
    assert len(every) == len(set(every)), "a push was applied twice"
    by_number = dict(updates)
    for server in job.group.members:
        numbers = [number for number, _ in server.applied]
        assert numbers == sorted(set(numbers))
        views = [number for number, entry in server.sequencer.log.items() if isinstance(entry, Begin)]
        assert views == sorted(views)
        mine = {number: pushes for number, pushes in server.applied if number in by_number}
        start = min(mine, default=max(by_number, default=0) + 1)
        assert mine == {number: pushes for number, pushes in updates if number >= start}, "an update is missing"


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_lost_or_doubled_whatever_dies(seed: int) -> None:
    simulate(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_nothing_is_lost_or_doubled_in_thousands_of_schedules(block: int) -> None:
    for seed in range(1000 + block * 150, 1000 + (block + 1) * 150):
        simulate(seed)
