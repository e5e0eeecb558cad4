"""What the launcher decides, for orders of events that real processes rarely show."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.events import (
    CheckpointLost,
    CheckpointPublished,
)
from shoal.launching import texts
from shoal.launching.supervision.orders import (
    AskToStop,
    CoordinatorExited,
    Fact,
    FinishJob,
    Instruction,
    InterruptWorkers,
    MachinesLeaving,
    Say,
    ServersFailed,
    Signalled,
    StartWorker,
    TellExit,
    TimePassed,
    WorkerExited,
)
from shoal.launching.supervision.supervisor import (
    CLEAN_STOP,
    ECHO,
    LAST_WORD,
    SAVING_STOP,
    SAVING_WORD,
    Supervisor,
)
from shoal.wire.messages import Ended, Enlisted
from support.supervision import (
    BACK,
    CTRL_C,
    GOOD,
    LOST,
    STOP_NOTED,
    connected,
    died,
    finishes,
    handed_over,
    joined,
    left,
    play,
    saved,
    saving,
    unsaved,
)


def test_a_job_without_servers_cannot_go_on() -> None:
    finish = finishes([joined(0), ServersFailed("5 in a row ended")])
    assert (finish.exit_code, finish.error, finish.text) == (10, "ServersLost", "5 in a row ended")


def test_job_is_over_when_it_is_ended_and_every_script_has_exited() -> None:
    facts = [joined(0), joined(1), left(0), left(1), GOOD, WorkerExited(0, 0)]
    assert not any(isinstance(instruction, FinishJob) for instruction in play(facts))
    assert finishes([*facts, WorkerExited(1, 0)]).exit_code == 0


def test_exits_are_reported_until_the_job_has_ended() -> None:
    assert TellExit(0, 7) in play([WorkerExited(0, 7)])
    assert play([GOOD, WorkerExited(0, 7)]) == []


def test_failed_job_ends_at_once_and_names_the_lost_worker() -> None:
    finish = finishes([joined(0), joined(1), died(1), LOST])
    assert (finish.exit_code, finish.text, finish.lost_worker) == (3, LOST.text, 1)
    assert finish.grace > 0


def test_script_failure_after_the_end_of_training_counts() -> None:
    finish = finishes([GOOD, WorkerExited(0, 0), WorkerExited(1, 5)])
    assert (finish.exit_code, finish.error) == (1, "ScriptFailed")
    assert "worker 1 exited with code 5" in finish.text
    assert finishes([GOOD, WorkerExited(0, -11), WorkerExited(1, 0)]).exit_code == 3


def test_coordinator_that_never_answers_is_not_waited_for_for_ever() -> None:
    supervisor = connected(1)
    supervisor.handle(WorkerExited(0, 0), 5.0)
    assert supervisor.deadline == 5.0 + LAST_WORD
    assert isinstance(supervisor.handle(TimePassed(), 5.0 + LAST_WORD)[0], FinishJob)


def test_ctrl_c_asks_a_joined_job_to_stop_and_waits_for_it() -> None:
    facts: list[Fact] = [joined(0), joined(1), CTRL_C]
    assert [type(instruction) for instruction in play(facts)] == [AskToStop, Say]
    finish = finishes([*facts, left(0), left(1), GOOD, WorkerExited(0, 0), WorkerExited(1, 0)])
    assert (finish.exit_code, finish.error) == (130, "")


def test_ctrl_c_interrupts_scripts_that_have_not_joined_and_their_exits_are_no_failure() -> None:
    out = play([CTRL_C, STOP_NOTED, WorkerExited(0, 1), WorkerExited(1, -2)])
    assert [type(instruction) for instruction in out] == [AskToStop, InterruptWorkers, Say, FinishJob]
    assert out[-1] == FinishJob(130, 0.5, text=texts.STOP_WORDS[signal.SIGINT])


def test_ctrl_c_in_the_first_moments_waits_to_know_whether_anybody_has_joined() -> None:
    """What has joined is to stop with a last checkpoint; the news of it may be on its way to the launcher."""
    supervisor = Supervisor(2)
    assert [type(one) for one in supervisor.handle(CTRL_C, 0.0)] == [AskToStop]
    assert [type(one) for one in supervisor.handle(BACK, 1.0)] == [AskToStop]
    assert supervisor.handle(joined(0), 1.1) == ()
    assert supervisor.handle(STOP_NOTED, 1.2) == (Say(texts.STOPPING_AFTER_STEP),)


def test_ctrl_c_does_not_wait_long_for_a_coordinator_that_says_nothing_to_it() -> None:
    supervisor = connected(1)
    supervisor.handle(CTRL_C, 1.0)
    assert supervisor.deadline == 1.0 + ECHO
    assert [type(one) for one in supervisor.handle(TimePassed(), 1.0 + ECHO)] == [InterruptWorkers, Say]


def test_loss_while_stopping_lets_the_others_finish() -> None:
    facts: list[Fact] = [joined(0), joined(1), CTRL_C, died(1), LOST]
    assert not any(isinstance(instruction, FinishJob) for instruction in play(facts))
    assert finishes([*facts, WorkerExited(0, 3), WorkerExited(1, -9)]).exit_code == 130


def test_stop_takes_no_longer_than_promised() -> None:
    supervisor = connected(2)
    supervisor.handle(joined(0), 0.0)
    supervisor.handle(CTRL_C, 1.0)
    assert supervisor.handle(TimePassed(), 1.0 + CLEAN_STOP - 0.01) == ()
    [finish] = supervisor.handle(TimePassed(), 1.0 + CLEAN_STOP)
    assert isinstance(finish, FinishJob)
    assert finish.exit_code == 130


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_kills_at_once(second: signal.Signals) -> None:
    finish = finishes([joined(0), CTRL_C, Signalled(second)])
    assert (finish.exit_code, finish.grace) == (130, 0.0)


def test_closing_terminal_is_one_request_however_often_it_is_said() -> None:
    hang_up = Signalled(signal.SIGHUP)
    out = play([joined(0), hang_up, hang_up, Signalled(signal.SIGPIPE)])
    assert not any(isinstance(instruction, FinishJob) for instruction in out)


def test_machines_that_are_taken_away_stop_the_job_once_and_their_signal_is_no_second_request() -> None:
    """Every machine says so, and the launcher may get the same SIGTERM a moment later."""
    leaving, term = MachinesLeaving("soon"), Signalled(signal.SIGTERM)
    out = play([joined(0), leaving, leaving, term, leaving])
    assert out == [Say("soon"), AskToStop(texts.STOP_WORDS[signal.SIGTERM], 143), Say(texts.STOPPING_AFTER_STEP)]
    assert not any(isinstance(one, FinishJob) for one in play([joined(0), term, leaving, leaving]))
    finish = finishes([joined(0), leaving, term, term])
    assert (finish.exit_code, finish.grace) == (143, 0.0)
    assert finishes([joined(0), leaving, CTRL_C]).grace == 0.0


# Checkpoints at the end


@pytest.mark.parametrize("end", [saved, unsaved])
def test_stop_waits_for_the_last_checkpoint_and_then_a_moment(
    end: Callable[[str], CheckpointPublished | CheckpointLost],
) -> None:
    supervisor = connected(1)
    supervisor.handle(joined(0), 0.0)
    supervisor.handle(CTRL_C, 1.0)
    said = supervisor.handle(saving("a", is_last=True), 2.0)
    assert said == (Say(texts.LAST_CHECKPOINT),)
    assert supervisor.handle(TimePassed(), 1.0 + SAVING_STOP - 1) == ()
    supervisor.handle(end("a"), 300.0)
    assert supervisor.deadline == 300.0 + CLEAN_STOP
    [finish] = supervisor.handle(TimePassed(), 300.0 + CLEAN_STOP)
    assert isinstance(finish, FinishJob)


def test_stop_waits_for_a_checkpoint_that_was_begun_before_it() -> None:
    """The last one can only be begun when the one before is written."""
    supervisor = connected(1)
    for time, fact in enumerate([joined(0), saving("a"), CTRL_C]):
        supervisor.handle(fact, float(time))
    assert supervisor.deadline == 2.0 + SAVING_STOP
    supervisor.handle(saved("a"), 60.0)
    assert supervisor.deadline == 60.0 + CLEAN_STOP
    supervisor.handle(saving("b", is_last=True), 61.0)
    assert supervisor.deadline == 2.0 + SAVING_STOP


def test_a_store_that_never_answers_does_not_hold_a_stop_for_ever() -> None:
    supervisor = connected(1)
    for time, fact in enumerate([joined(0), CTRL_C, saving("a", is_last=True)]):
        supervisor.handle(fact, float(time))
    [finish] = supervisor.handle(TimePassed(), 1.0 + SAVING_STOP)
    assert isinstance(finish, FinishJob)


def test_second_ctrl_c_does_not_wait_for_the_last_checkpoint() -> None:
    finish = finishes([joined(0), CTRL_C, saving("a", is_last=True), CTRL_C])
    assert (finish.exit_code, finish.grace) == (130, 0.0)


def test_coordinator_may_publish_when_all_workers_are_gone() -> None:
    supervisor = connected(1)
    supervisor.handle(saving("a", is_last=True), 0.0)
    assert supervisor.handle(WorkerExited(0, 0), 1.0) == (TellExit(0, 0),)
    assert supervisor.deadline == 1.0 + SAVING_WORD
    supervisor.handle(saved("a"), 20.0)
    assert supervisor.deadline == 20.0 + LAST_WORD
    [finish] = supervisor.handle(GOOD, 20.5)
    assert isinstance(finish, FinishJob)


def test_interrupted_scripts_do_not_take_the_publication_with_them() -> None:
    facts: list[Fact] = [joined(0), saving("a", is_last=True), left(0), CTRL_C, STOP_NOTED]
    facts += [WorkerExited(0, 1), WorkerExited(1, 1)]
    assert not any(isinstance(instruction, FinishJob) for instruction in play(facts))
    assert finishes([*facts, saved("a")]).exit_code == 130


def test_a_stopped_job_that_has_ended_does_not_wait_for_a_worker_that_never_joined() -> None:
    """A spare that was let go a moment before Ctrl-C, and a last checkpoint of which nothing more was heard."""
    facts: list[Fact] = [joined(0), CTRL_C, saving("a", is_last=True), WorkerExited(0, 1)]
    assert not any(isinstance(instruction, FinishJob) for instruction in play(facts))
    assert finishes([*facts, Ended(exit_code=130, error="", text="interrupted by Ctrl-C")]).exit_code == 130


def test_scripts_have_a_moment_after_the_end_of_a_stopped_job_whatever_became_of_its_checkpoint() -> None:
    supervisor = connected(1)
    for time, fact in enumerate([joined(0), CTRL_C, saving("a", is_last=True), GOOD]):
        supervisor.handle(fact, float(time))
    assert supervisor.deadline == 3.0 + CLEAN_STOP


facts = st.one_of(
    st.builds(WorkerExited, st.integers(0, 4), st.sampled_from([0, 1, -9])),
    st.builds(joined, st.integers(0, 4)),
    st.builds(left, st.integers(0, 4)),
    st.builds(handed_over, st.integers(0, 4)),
    st.builds(died, st.integers(0, 4)),
    st.builds(lambda worker: Enlisted(worker=worker), st.integers(3, 6)),
    st.sampled_from([saving("a"), saving("b", is_last=True), saved("a"), unsaved("b")]),
    st.sampled_from([GOOD, LOST, CTRL_C, Signalled(signal.SIGHUP), TimePassed(), BACK, CoordinatorExited("exited")]),
)


@given(st.lists(facts, max_size=30))
def test_whatever_happens_two_signals_are_the_end_and_nothing_comes_after_it(happened: list[Fact]) -> None:
    supervisor = Supervisor(3)
    out: list[Instruction] = []
    for number, fact in enumerate([*happened, CTRL_C, CTRL_C, TimePassed()]):
        out += supervisor.handle(fact, number * 0.1)
    assert [isinstance(instruction, FinishJob) for instruction in out].count(True) == 1
    assert isinstance(out[-1], FinishJob)


@given(st.lists(facts, max_size=30))
def test_no_more_processes_run_than_there_are_places(happened: list[Fact]) -> None:
    """And none is started under a number that has been used."""
    supervisor = connected(3)
    running, used = {0, 1, 2}, {0, 1, 2}
    for number, fact in enumerate(happened):
        if isinstance(fact, WorkerExited):
            running.discard(fact.worker)
        given_before = isinstance(fact, Enlisted) and fact.worker in used
        for instruction in supervisor.handle(fact, float(number)) if not given_before else ():
            if isinstance(instruction, StartWorker):
                assert instruction.worker not in used
                running.add(instruction.worker)
                used.add(instruction.worker)
        assert len(running) <= 3
