"""What went wrong in a job, and which happenings are one incident."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import events
from shoal.values import TimeShares
from shoal.watch.incident_words import cost_cells, in_a_line, percent, without_progress
from shoal.watch.record.goodput import Cost
from shoal.watch.record.incident import Incident
from shoal.watch.record.incidents import MOST_INCIDENTS, Incidents
from support.records import job_started

Told = tuple[float, events.Event]


def incidents(*happened: Told) -> Incidents:
    """A step after which training goes on is told when it was applied."""
    made = Incidents()
    for time, event in happened:
        is_bare = isinstance(event, events.ProgressResumed) and event.time == 0.0
        made.add(msgspec.structs.replace(event, time=time) if is_bare else event, time)
    return made


def formed(generation: int, *workers: int, reason: str = "") -> events.GenerationFormed:
    return events.GenerationFormed(
        generation=generation, workers=workers, schedule="ring", codec="identity", reason=reason or f"why {generation}"
    )


def died(worker: int, step: int = 10) -> events.WorkerDied:
    reason = f"worker {worker} was killed by SIGKILL"
    return events.WorkerDied(worker=worker, host="h", process=1, step=step, operation="all-reduce", reason=reason)


def void(worker: int, generation: int = 1, step: int = 10) -> events.StepVoided:
    return events.StepVoided(worker=worker, generation=generation, step=step, operation="all-reduce", reason="a peer")


def resumed(generation: int, seconds: float = 1.0, **changes: Any) -> events.ProgressResumed:
    event = events.ProgressResumed(
        generation=generation,
        step=10,
        time=0.0,
        seconds=seconds,
        redone=1,
        samples_redone=32,
        reason="the members changed",
    )
    return msgspec.structs.replace(event, **changes)


def injected(fault: str, worker: int | None = None, seconds: float | None = None) -> events.FaultInjected:
    return events.FaultInjected(fault=fault, worker=worker, seconds=seconds, reason=f"{fault} every 15s")


BEGIN: list[Told] = [(0.0, job_started()), (1.0, formed(1, 0, 1, 2, 3))]
END = events.JobEnded(outcome="finished", exit_code=0, reason="all workers finished", seconds=99.0)


def test_a_job_in_which_nothing_goes_wrong_has_no_incident() -> None:
    left = events.WorkerLeft(worker=0, step=9, reason="the script is done")
    made = incidents(*BEGIN, (5.0, left), (6.0, END))
    assert list(made) == []


def test_a_kill_is_one_incident_from_its_injection_to_the_next_step() -> None:
    made = incidents(
        *BEGIN,
        (10.0, injected("kill", 2)),
        (10.1, died(2)),
        (10.1, void(0)),
        (10.1, void(1)),
        (10.3, formed(2, 0, 1, 3)),
        (10.8, resumed(2, 0.9)),
        (10.9, events.StateCopied(worker=1, source=0, step=9, size=5, seconds=0.1, reason="was behind")),
    )
    [incident] = made
    assert incident.story == ["on purpose: kill worker 2 (kill every 15s)", "worker 2 was killed by SIGKILL"]
    assert incident.decided == ["generation 2 with 3 workers: why 2"]
    assert (incident.time, incident.resumed, incident.seconds) == (10.0, 10.8, 0.9)
    assert (incident.steps_redone, incident.samples_redone, incident.copied) == (1, 32, 5)
    assert incident.without_progress(0.2) == pytest.approx(0.7)
    assert (incident.is_fault, incident.is_injected, incident.is_open) == (True, True, False)


def test_two_workers_killed_at_once_are_one_incident() -> None:
    made = incidents(
        *BEGIN, (10.0, injected("kill", 1)), (10.0, injected("kill", 2)), (10.1, died(2)), (10.1, died(1)),
        (10.3, formed(2, 0, 3)), (10.8, resumed(2, 0.9)),
    )  # fmt: skip
    [incident] = made
    assert (incident.lost, len(incident.story)) == ({1, 2}, 4)


def test_news_of_the_fault_may_come_after_that_of_its_effect() -> None:
    made = incidents(
        *BEGIN, (10.1, died(2)), (10.2, formed(2, 0, 1, 3)), (10.4, resumed(2)), (10.5, injected("kill", 2))
    )
    [incident] = made
    assert incident.is_injected


def test_workers_that_die_while_others_regroup_are_in_the_same_incident() -> None:
    made = incidents(
        *BEGIN, (10.0, died(1)), (10.2, formed(2, 0, 2, 3)), (10.3, died(2)), (10.4, resumed(2, 0.4)),
        (10.5, formed(3, 0, 3)), (10.9, resumed(3, 0.5)), (20.0, died(3)), (20.1, formed(4, 0)), (20.2, resumed(4)),
    )  # fmt: skip
    both, single = made
    assert both.lost == {1, 2}
    assert both.seconds == pytest.approx(0.9)
    assert single.lost == {3}
    assert made.counts.lost == {(1, 1), (1, 2), (1, 3)}


def test_a_newcomer_costs_a_moment_and_is_no_fault() -> None:
    started = events.WorkerStarted(worker=4, is_spare=True, reason="in place of worker 2")
    made = incidents(
        *BEGIN, (10.0, died(2)), (10.1, formed(2, 0, 1, 3)), (10.5, resumed(2)), (10.6, started),
        (14.0, formed(3, 0, 1, 3, 4)), (14.3, resumed(3, 0.3, redone=0, samples_redone=0)),
    )  # fmt: skip
    loss, arrival = made
    assert loss.decided[-1] == "worker 4 was started, a spare that was ready: in place of worker 2"
    assert (arrival.story, arrival.is_fault, arrival.came) == (["worker 4 came in"], False, {4})
    assert in_a_line(made, Cost(step_seconds=0.1)) == (
        "1 worker lost and replaced, 1.1 s without progress, 1 step (32 samples) redone"
    )


def test_a_newcomer_that_dies_before_it_came_in_stops_nobody() -> None:
    [incident] = incidents(*BEGIN, (10.0, died(7)))
    assert (incident.is_stop, incident.lost, incident.without_progress(0.0)) == (False, set(), 0.0)


def test_an_expelled_worker_is_linked_to_the_fault_that_stopped_it_long_before() -> None:
    expelled = events.WorkerExpelled(worker=3, step=10, reason="silent for 30 s")
    made = incidents(
        *BEGIN, (10.0, injected("stop", 3, 40.0)), (12.0, injected("slow", 1, 60.0)), (40.0, expelled),
        (40.1, formed(2, 0, 1, 2)), (40.5, resumed(2, 30.5)),
    )  # fmt: skip
    stop, slow = made
    assert (stop.lost, stop.is_stop, slow.is_stop) == ({3}, True, False)
    assert (stop.end, slow.end) == (50.0, 72.0)


def test_an_old_quiet_fault_does_not_swallow_a_later_death() -> None:
    back = events.WorkerReturned(worker=2, generation=1)
    made = incidents(*BEGIN, (10.0, back), (500.0, died(2)), (500.1, formed(2, 0, 1, 3)), (501.0, resumed(2)))
    assert [incident.time for incident in made] == [10.0, 500.0]


def test_a_coordinator_that_comes_back_holds_nothing_up() -> None:
    returned = events.CoordinatorReturned(generation=1, reason="started again")
    made = incidents(
        *BEGIN, (10.0, injected("kill-coordinator")), (12.0, returned),
        *((12.1, events.WorkerReturned(worker=n, generation=1)) for n in range(4)),
    )  # fmt: skip
    [incident] = made
    assert incident.story[1:] == ["the coordinator's process was gone"]
    assert not incident.is_stop
    assert in_a_line(made, Cost()) == "the coordinator restarted once, under 1 ms without progress"


def test_silent_corruption_is_told_with_what_was_done_about_it() -> None:
    differed = events.ReplicaDiffered(worker=1, step=100, reason="worker 1 alone differs; it copies")
    made = incidents(*BEGIN, (10.0, differed), (10.1, formed(2, 0, 1, 2, 3)), (10.4, resumed(2)))
    [incident] = made
    assert incident.story == ["parameters of worker 1 differed at step 100"]
    assert incident.decided == ["worker 1 alone differs; it copies", "generation 2 with 4 workers: why 2"]
    assert incident.is_stop
    assert made.counts.differed == 1


def test_losing_everybody_costs_what_the_first_step_after_says_and_nothing_is_counted_twice() -> None:
    restored = events.Resumed(checkpoint="step-00000100-g1", step=100, workers=4, reason="the newest")
    loop = events.LoopStarted(loop=1, epochs=1, steps_per_epoch=999, global_batch=32, samples_per_epoch=None)
    back = resumed(2, 10.5, time=60.0, redone=31, samples_redone=31 * 32, taken_back=30)
    made = incidents(
        *BEGIN, (2.0, loop), (49.0, applied(1, 130)), *((50.0, died(n, step=131)) for n in range(4)),
        (50.0, void(0, step=131)), (51.0, events.Waiting(workers=0, needed=1, reason="all are lost")),
        (58.0, formed(2, 4, 5, 6, 7)), (59.0, restored), (60.3, back),
    )  # fmt: skip
    [incident] = made
    assert (incident.seconds, incident.waited_from, incident.resumed) == (10.5, 51.0, 60.0)
    assert (incident.spans, incident.time) == ([(49.5, 60.0)], 50.0), "from the last step, not from its first sign"
    assert (incident.steps_redone, incident.samples_redone, incident.taken_back) == (31, 31 * 32, 30)
    assert "resumed at step 100 from step-00000100-g1: the newest" in incident.decided
    assert cost_cells(incident, Cost())[1] == "31 steps (992 samples), 30 of which had been applied"


def test_workers_that_were_all_stopped_and_go_on_are_an_incident_that_is_over() -> None:
    silence = "no member of the generation was heard from for 7.0 s"
    waits = events.Waiting(workers=0, needed=1, reason=silence)
    made = incidents(
        *BEGIN, (20.0, waits), (25.2, resumed(1, 12.1, time=25.0, redone=0, samples_redone=0)), (40.0, END)
    )
    [incident] = made
    assert incident.story == [silence]
    assert (incident.is_open, incident.resumed, incident.spans) == (False, 25.0, [(pytest.approx(12.9), 25.0)])
    assert in_a_line(made, Cost(step_seconds=0.1)) == "12 s without progress"


def test_what_a_job_does_not_get_over_lasts_to_its_end() -> None:
    failed = events.JobEnded(outcome="failed", exit_code=3, reason="nobody is left", seconds=9.0)
    made = incidents(*BEGIN, (50.0, died(1)), (50.1, formed(2, 0, 2, 3)), (58.0, failed))
    [incident] = made
    cost = Cost(step_seconds=0.5, lasts={1: 49.0})
    assert cost.lost_to(incident) == pytest.approx(8.5), "from the last step of that go of the job"
    assert cost_cells(incident, cost)[0] == "8.5 s, to the end"
    assert without_progress(made, cost) == pytest.approx(8.5)


def test_a_worker_that_is_expelled_twice_is_one_that_was_lost() -> None:
    expelled = events.WorkerExpelled(worker=1, step=10, reason="silent for 30 s")
    made = incidents(
        *BEGIN, (10.0, expelled), (10.1, formed(2, 0, 2, 3)), (10.2, resumed(2)), (20.0, formed(3, 0, 1, 2, 3)),
        (20.1, resumed(3)), (30.0, expelled), (30.1, formed(4, 0, 2, 3)), (30.2, resumed(4)), (31.0, expelled),
    )  # fmt: skip
    assert in_a_line(made, Cost()).startswith("1 worker lost (1 expelled) and replaced, ")


def test_servers_that_were_lost_are_counted_once() -> None:
    gone = events.ParametersGone(server=None, blocks=5, size=20_000, reason="all servers that held them are lost")
    lost = [events.ServerLost(server=number, reason="it closed the connection") for number in (0, 1)]
    made = incidents(
        *BEGIN, (10.0, lost[0]), (10.0, lost[1]), (10.1, lost[1]), (10.2, void(0)), (10.3, formed(2, 0, 1, 2, 3)),
        (10.4, gone), (11.0, resumed(2, 1.5, redone=18, samples_redone=18, taken_back=17)),
    )  # fmt: skip
    [incident] = made
    assert incident.happened[-1].startswith("5 blocks of parameters (20 kB) are on no server any more")
    assert in_a_line(made, Cost()) == "2 servers lost, 1.5 s without progress, 18 steps (18 samples) redone"


def test_a_job_that_crashed_and_is_resumed_tells_what_was_redone() -> None:
    step = events.CheckpointStarted(checkpoint="c", step=140, reason="")
    again = events.Resumed(checkpoint="step-00000100-g1", step=100, workers=4, reason="the newest")
    made = incidents(*BEGIN, (50.0, step), (900.0, job_started()), (901.0, formed(2, 0, 1)), (902.0, again))
    [incident] = made
    assert (incident.steps_redone, incident.is_stop) == (40, False)
    clean = incidents(*BEGIN, (50.0, END), (900.0, job_started()), (901.0, formed(2, 0, 1)))
    assert list(clean) == []
    # A go that lost more than nothing is told also where it ended as it was asked to.
    behind = incidents(*BEGIN, (50.0, step), (51.0, END), (900.0, job_started()), (902.0, again))
    assert [incident.steps_redone for incident in behind] == [40]


def test_an_exchange_that_breaks_because_the_job_is_stopped_is_no_incident() -> None:
    stopped = events.JobEnded(outcome="interrupted", exit_code=143, reason="SIGTERM", seconds=9.0)
    assert list(incidents(*BEGIN, (5.0, void(0)), (6.0, stopped))) == []
    failed = events.JobEnded(outcome="failed", exit_code=3, reason="nobody is left", seconds=9.0)
    [incident] = incidents(*BEGIN, (5.0, void(0)), (6.0, failed))
    assert incident.decided == ["the job ended: nobody is left"]
    assert incident.story == ["step 10 was void in all-reduce: a peer"]


def test_a_handover_is_told_and_its_end_of_the_script_is_not() -> None:
    left = events.WorkerLeft(worker=1, step=9, reason="SIGTERM", is_handover=True)
    [incident] = incidents(*BEGIN, (5.0, left), (5.1, formed(2, 0, 2, 3)), (5.4, resumed(2)))
    assert incident.story == ["worker 1 handed over: SIGTERM"]


def test_a_traceback_is_told_by_its_last_line() -> None:
    text = "Traceback (most recent call last):\n  File x\nValueError: no"
    failed = events.WorkerFailed(worker=1, step=9, error="ScriptFailed", text=text)
    [incident] = incidents(*BEGIN, (5.0, failed))
    assert incident.story == ["worker 1 failed in step 9: ValueError: no"]


def test_endless_trouble_is_bounded_and_all_of_it_counts() -> None:
    told: list[Told] = list(BEGIN)
    for number in range(2, 2 * MOST_INCIDENTS):
        told += [(20.0 * number, formed(number, 0, 1)), (20.0 * number + 1, resumed(number, 0.5))]
    made = incidents(*told)
    assert len(made) == MOST_INCIDENTS
    assert made.earlier == MOST_INCIDENTS - 2
    assert f"{2 * MOST_INCIDENTS - 2:,} steps" in in_a_line(made, Cost()), "also of those that are not told one by one"
    assert without_progress(made, Cost(step_seconds=0.1)) == pytest.approx(0.4 * (2 * MOST_INCIDENTS - 2))


@pytest.mark.parametrize(("part", "text"), [(1.0, "100%"), (0.996, "99.6%"), (0.974, "97%"), (0.0, "0%")])
def test_parts_of_a_hundred(part: float, text: str) -> None:
    assert percent(part) == text


def some_event() -> st.SearchStrategy[events.Event]:
    worker = st.integers(0, 5)
    number = st.integers(1, 6)
    return st.one_of(
        st.just(job_started()),
        st.builds(lambda n, who: formed(n, *sorted(who)), number, st.sets(worker, min_size=1)),
        st.builds(died, worker),
        st.builds(void, worker, number, st.integers(1, 50)),
        st.builds(resumed, number, st.floats(0, 100)),
        st.builds(injected, st.sampled_from(["kill", "stop"]), st.none() | worker, st.none() | st.floats(0, 9)),
        st.builds(lambda w: events.WorkerExpelled(worker=w, step=1, reason="silent"), worker),
        st.builds(lambda w: events.WorkerReturned(worker=w, generation=1), worker),
        st.builds(lambda w: events.WorkerLeft(worker=w, step=1, reason="SIGTERM", is_handover=True), worker),
        st.builds(lambda w: events.ReplicaDiffered(worker=w, step=1, reason="one differs"), st.none() | worker),
        st.builds(lambda n: events.Waiting(workers=n, needed=9, reason="too few"), number),
        st.builds(lambda n: events.CoordinatorReturned(generation=n, reason="again"), number),
        st.builds(lambda n: events.Resumed(checkpoint="c", step=n, workers=1, reason="newest"), number),
        st.just(END),
    )  # fmt: skip


@given(st.lists(st.tuples(st.floats(0, 50), some_event()), max_size=40))
def test_any_order_of_events_gives_sensible_incidents(steps: list[tuple[float, events.Event]]) -> None:
    time = 0.0
    made = Incidents()
    for later, event in steps:
        time += later
        made.add(event, time)
    found: list[Incident] = list(made)
    assert sum(incident.is_stop and incident.is_open for incident in found) <= 1, "steps wait for one at most"
    for incident in found:
        assert incident.story
        assert all(incident.story), "something is said of each"
        assert incident.seconds >= 0
        assert incident.resumed is None or incident.resumed >= incident.time
        assert incident.steps_redone >= 0
    faults = sum(isinstance(event, events.FaultInjected) for _, event in steps)
    assert sum(line.startswith("on purpose") for incident in found for line in incident.happened) == faults
    assert all(start <= end for start, end in made.stops)
    assert in_a_line(made, Cost())


def applied(generation: int, step: int) -> events.StepsApplied:
    return events.StepsApplied(
        worker=9,
        generation=generation,
        step=step,
        epoch=0,
        samples=32,
        seconds=1.0,
        shares=TimeShares(),
        bytes_sent=0,
        values={},
        value_samples=0,
        rows=(),
    )


def test_newcomers_that_are_let_in_are_no_effect_of_a_fault_that_is_at_work() -> None:
    slow, came = incidents(
        *BEGIN, (10.0, injected("slow", 1, seconds=5.0)), (12.0, formed(2, 0, 1, 2, 3, 4)), (12.1, resumed(2, 0.1))
    )
    assert (slow.is_stop, slow.decided) == (False, [])
    assert came.came == {4}


def test_a_killed_coordinator_and_its_return_are_one_incident_though_the_fault_is_told_afterwards() -> None:
    returned = events.CoordinatorReturned(generation=1, reason="started again")
    gone, kill = incidents(
        *BEGIN, (10.0, returned), (10.1, injected("kill-coordinator")), (12.0, injected("kill", 2)), (12.1, died(2))
    )
    assert gone.faults == {"kill-coordinator"}
    assert kill.faults == {"kill"} and kill.lost == {2}
