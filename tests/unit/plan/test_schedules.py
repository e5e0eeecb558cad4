"""Random fault schedules over the live protocol: whatever fails, what must be true is. A failure names its seed."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.job_config import JobConfig
from shoal.plan.members.cluster import Cluster, Parts, how_to_replay, replay, simulate
from shoal.plan.members.fault_schedules import Fault, FaultKind, Schedule, random_schedule
from shoal.plan.members.invariants import Violation

SHORT = range(25)  # seeds in `make test`
LONG = range(1000, 3000)  # and in `make test-long`
BLOCK = 50  # seeds per test of the long run


def check(seeds: range) -> None:
    for seed in seeds:
        try:
            simulate(random_schedule(seed))
        except Violation as violation:
            pytest.fail(f"schedule {seed}: {violation}; to see it: {how_to_replay(seed)}")


def test_random_schedules() -> None:
    check(SHORT)


@pytest.mark.long
@pytest.mark.parametrize("first", LONG[::BLOCK])
def test_many_random_schedules(first: int) -> None:
    check(range(first, first + BLOCK))


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        cluster = Cluster(random_schedule(5), Parts())
        cluster.run()
        runs.append((cluster.time.now, cluster.events))
    assert runs[0] == runs[1]


def test_losing_fewer_than_all_needs_no_checkpoint() -> None:
    """One kill after the other, with time to recover in between, never makes the job go back."""
    for seed in range(20):
        schedule = random_schedule(seed, kinds=(FaultKind.KILL, FaultKind.VANISH))
        faults = tuple(
            Fault(fault.kind, 1.0 + 4.0 * n, 0.0, fault.first, 0.0) for n, fault in enumerate(schedule.faults)
        )
        schedule = dataclasses.replace(schedule, faults=faults, late=())
        if schedule.config.workers < 3:
            continue
        outcome = simulate(schedule)
        assert outcome.restores == 0, seed
        assert outcome.applied - outcome.steps <= len(faults)  # a step whose only witnesses died is done again


@pytest.mark.parametrize("victim", [0.0, 0.99], ids=["first", "last"])
def test_whoever_is_killed_behind_the_loop_is_stood_in_for_without_a_checkpoint(victim: float) -> None:
    """At any time there; the simulation checks that the code behind the loop ran to its end."""
    schedule = random_schedule(9)
    assert schedule.config.workers == 3
    for tenths in range(1, 20):
        late = (Fault(FaultKind.KILL, tenths / 10, 0.0, victim, 0.0),)
        outcome = simulate(dataclasses.replace(schedule, faults=(), late=late))
        assert (outcome.restores, outcome.applied) == (0, outcome.steps), tenths


@pytest.mark.parametrize("kind", [FaultKind.KILL, FaultKind.KILL_ALL, FaultKind.CRASH])
def test_what_is_killed_before_the_first_generation_costs_nothing(kind: FaultKind) -> None:
    schedule = random_schedule(3)
    for hundredths in range(5, 80, 15):
        faults = (Fault(kind, hundredths / 100, 0.0, 0.5, 0.0),)
        outcome = simulate(dataclasses.replace(schedule, faults=faults, late=()))
        assert outcome.applied == outcome.steps, hundredths


def test_a_job_that_loses_everybody_starts_again_from_its_checkpoint() -> None:
    schedule = random_schedule(3)
    schedule = dataclasses.replace(schedule, faults=(Fault(FaultKind.KILL_ALL, 5.0, 0.0, 0.0, 0.0),), late=())
    outcome = simulate(schedule)
    assert outcome.restores == 1
    assert outcome.steps < outcome.applied < 2 * outcome.steps


@pytest.mark.parametrize("seed", range(5))
def test_twenty_newcomers_that_come_within_a_second_cost_one_or_two_generations(seed: int) -> None:
    schedule = random_schedule(seed)
    config = JobConfig(workers=24, min_workers=4, heartbeat_limit=1.0, lease=2.0, hang_limit=4.0, seed=seed)
    task = dataclasses.replace(schedule.task, samples=2000, epochs=1)
    comes = tuple(Fault(FaultKind.JOIN, 5.0 + n / 20, 0.0, 0.0, 0.0) for n in range(20))
    cluster = Cluster(Schedule(seed, config, task, schedule.pace, comes, missing=20), Parts())
    cluster.run()
    sizes = [generation.size for generation in cluster.history.generations]
    assert sizes[0] == 4
    assert sizes[-1] == 24
    assert len(sizes) in (2, 3), sizes


def test_a_replay_tells_faults_events_and_the_end() -> None:
    schedule = random_schedule(3)
    told = list(replay(dataclasses.replace(schedule, faults=(Fault(FaultKind.KILL, 5.0, 0.0, 0.0, 0.0),))))
    assert told[0].startswith("schedule 3:")
    assert any("fault: " in line for line in told)
    assert any("generation-formed" in line for line in told)
    assert told[-1].startswith("finished after")
