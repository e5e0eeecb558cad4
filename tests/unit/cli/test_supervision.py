"""What the launcher decides, for orders of events that real processes rarely show."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.supervision import (
    CLEAN_STOP,
    LAST_WORD,
    SAVING_STOP,
    SAVING_WORD,
    AskToStop,
    CoordinatorExited,
    Fact,
    Finish,
    Instruction,
    InterruptWorkers,
    Say,
    Signalled,
    Supervisor,
    TellExit,
    Tick,
    WorkerExited,
)
from shoal.events import (
    CheckpointLost,
    CheckpointPublished,
    CheckpointStarted,
    WorkerDied,
    WorkerJoined,
    WorkerLeft,
)
from shoal.wire.messages import Ended

GOOD = Ended(exit_code=0, error="", text="all 2 workers finished")
LOST = Ended(exit_code=3, error="WorkerLost", text="worker 1 was killed by SIGKILL in step 4")
CTRL_C = Signalled(signal.SIGINT)


def joined(worker: int) -> WorkerJoined:
    return WorkerJoined(worker=worker, host="here", process=10 + worker, address="127.0.0.1:9")


def left(worker: int) -> WorkerLeft:
    return WorkerLeft(worker=worker, step=1, reason="finished")


def died(worker: int) -> WorkerDied:
    return WorkerDied(worker=worker, host="here", process=1, step=4, operation="", reason="")


def saving(name: str, *, is_last: bool = False) -> CheckpointStarted:
    return CheckpointStarted(checkpoint=name, step=1, reason="every step", is_last=is_last)


def saved(name: str) -> CheckpointPublished:
    return CheckpointPublished(checkpoint=name, step=1, size=1, seconds=1, blocked=0, removed=(), reason="every step")


def unsaved(name: str) -> CheckpointLost:
    return CheckpointLost(checkpoint=name, step=1, worker=0, reason="no space left on device")


def play(facts: Sequence[Fact], *, workers: int = 2, step: float = 0.01) -> list[Instruction]:
    supervisor = Supervisor(workers)
    out: list[Instruction] = []
    for number, fact in enumerate(facts):
        out += supervisor.handle(fact, number * step)
    return out


def finishes(facts: Sequence[Fact]) -> Finish:
    [finish] = [instruction for instruction in play(facts) if isinstance(instruction, Finish)]
    return finish


def test_job_is_over_when_it_is_ended_and_every_script_has_exited() -> None:
    facts = [joined(0), joined(1), left(0), left(1), GOOD, WorkerExited(0, 0)]
    assert not any(isinstance(instruction, Finish) for instruction in play(facts))
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
    supervisor = Supervisor(1)
    supervisor.handle(WorkerExited(0, 0), 5.0)
    assert supervisor.deadline == 5.0 + LAST_WORD
    assert isinstance(supervisor.handle(Tick(), 5.0 + LAST_WORD)[0], Finish)


def test_death_of_the_coordinator_ends_the_job_unless_it_had_said_its_last_word() -> None:
    finish = finishes([joined(0), CoordinatorExited("was killed by SIGKILL")])
    assert finish.exit_code == 70
    assert "was killed by SIGKILL" in finish.text
    assert play([GOOD, CoordinatorExited("exited with code 0")]) == []


def test_ctrl_c_asks_a_joined_job_to_stop_and_waits_for_it() -> None:
    facts: list[Fact] = [joined(0), joined(1), CTRL_C]
    assert [type(instruction) for instruction in play(facts)] == [AskToStop, Say]
    finish = finishes([*facts, left(0), left(1), GOOD, WorkerExited(0, 0), WorkerExited(1, 0)])
    assert (finish.exit_code, finish.error) == (130, "")


def test_ctrl_c_interrupts_scripts_that_have_not_joined_and_their_exits_are_no_failure() -> None:
    out = play([CTRL_C, WorkerExited(0, 1), WorkerExited(1, -2)])
    assert [type(instruction) for instruction in out] == [AskToStop, InterruptWorkers, Say, Finish]
    assert out[-1] == Finish(130, 0.5, text="interrupted by Ctrl-C")


def test_loss_while_stopping_lets_the_others_finish() -> None:
    facts: list[Fact] = [joined(0), joined(1), CTRL_C, died(1), LOST]
    assert not any(isinstance(instruction, Finish) for instruction in play(facts))
    assert finishes([*facts, WorkerExited(0, 3), WorkerExited(1, -9)]).exit_code == 130


def test_stop_takes_no_longer_than_promised() -> None:
    supervisor = Supervisor(2)
    supervisor.handle(joined(0), 0.0)
    supervisor.handle(CTRL_C, 1.0)
    assert supervisor.handle(Tick(), 1.0 + CLEAN_STOP - 0.01) == ()
    [finish] = supervisor.handle(Tick(), 1.0 + CLEAN_STOP)
    assert isinstance(finish, Finish)
    assert finish.exit_code == 130


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_kills_at_once(second: signal.Signals) -> None:
    finish = finishes([joined(0), CTRL_C, Signalled(second)])
    assert (finish.exit_code, finish.grace) == (130, 0.0)


def test_closing_terminal_is_one_request_however_often_it_is_said() -> None:
    hang_up = Signalled(signal.SIGHUP)
    out = play([joined(0), hang_up, hang_up, Signalled(signal.SIGPIPE)])
    assert not any(isinstance(instruction, Finish) for instruction in out)


@pytest.mark.parametrize("end", [saved, unsaved])
def test_stop_waits_for_the_last_checkpoint_and_then_a_moment(
    end: Callable[[str], CheckpointPublished | CheckpointLost],
) -> None:
    supervisor = Supervisor(1)
    supervisor.handle(joined(0), 0.0)
    supervisor.handle(CTRL_C, 1.0)
    said = supervisor.handle(saving("a", is_last=True), 2.0)
    assert said == (Say("writing the last checkpoint (Ctrl-C again to stop now)"),)
    assert supervisor.handle(Tick(), 1.0 + SAVING_STOP - 1) == ()
    supervisor.handle(end("a"), 300.0)
    assert supervisor.deadline == 300.0 + CLEAN_STOP
    [finish] = supervisor.handle(Tick(), 300.0 + CLEAN_STOP)
    assert isinstance(finish, Finish)


def test_stop_waits_for_a_checkpoint_that_was_begun_before_it() -> None:
    """The last one can only be begun when the one before is written."""
    supervisor = Supervisor(1)
    for time, fact in enumerate([joined(0), saving("a"), CTRL_C]):
        supervisor.handle(fact, float(time))
    assert supervisor.deadline == 2.0 + SAVING_STOP
    supervisor.handle(saved("a"), 60.0)
    assert supervisor.deadline == 60.0 + CLEAN_STOP
    supervisor.handle(saving("b", is_last=True), 61.0)
    assert supervisor.deadline == 2.0 + SAVING_STOP


def test_a_store_that_never_answers_does_not_hold_a_stop_for_ever() -> None:
    supervisor = Supervisor(1)
    for time, fact in enumerate([joined(0), CTRL_C, saving("a", is_last=True)]):
        supervisor.handle(fact, float(time))
    [finish] = supervisor.handle(Tick(), 1.0 + SAVING_STOP)
    assert isinstance(finish, Finish)


def test_second_ctrl_c_does_not_wait_for_the_last_checkpoint() -> None:
    finish = finishes([joined(0), CTRL_C, saving("a", is_last=True), CTRL_C])
    assert (finish.exit_code, finish.grace) == (130, 0.0)


def test_coordinator_may_publish_when_all_workers_are_gone() -> None:
    supervisor = Supervisor(1)
    supervisor.handle(saving("a", is_last=True), 0.0)
    assert supervisor.handle(WorkerExited(0, 0), 1.0) == (TellExit(0, 0),)
    assert supervisor.deadline == 1.0 + SAVING_WORD
    supervisor.handle(saved("a"), 20.0)
    assert supervisor.deadline == 20.0 + LAST_WORD
    [finish] = supervisor.handle(GOOD, 20.5)
    assert isinstance(finish, Finish)


def test_interrupted_scripts_do_not_take_the_publication_with_them() -> None:
    facts: list[Fact] = [joined(0), saving("a", is_last=True), left(0), CTRL_C, WorkerExited(0, 1), WorkerExited(1, 1)]
    assert not any(isinstance(instruction, Finish) for instruction in play(facts))
    assert finishes([*facts, saved("a")]).exit_code == 130


facts = st.one_of(
    st.builds(WorkerExited, st.integers(0, 2), st.sampled_from([0, 1, -9])),
    st.builds(joined, st.integers(0, 2)),
    st.builds(left, st.integers(0, 2)),
    st.builds(died, st.integers(0, 2)),
    st.sampled_from([saving("a"), saving("b", is_last=True), saved("a"), unsaved("b")]),
    st.sampled_from([GOOD, LOST, CTRL_C, Signalled(signal.SIGHUP), Tick(), CoordinatorExited("exited with code 1")]),
)


@given(st.lists(facts, max_size=30))
def test_whatever_happens_there_is_one_end_and_nothing_after_it(happened: list[Fact]) -> None:
    supervisor = Supervisor(3)
    out: list[Instruction] = []
    for number, fact in enumerate(happened):
        out += supervisor.handle(fact, number * 0.1)
    for worker in range(3):
        out += supervisor.handle(WorkerExited(worker, 0), 10.0)
    out += supervisor.handle(Tick(), 10.0 + SAVING_STOP)
    assert [isinstance(instruction, Finish) for instruction in out].count(True) == 1
    assert isinstance(out[-1], Finish)


def test_a_coordinator_that_does_not_answer_does_not_keep_a_lost_job_alive() -> None:
    facts: list[Fact] = [joined(0), joined(1), WorkerExited(1, -9), Tick()]
    assert not [one for one in play(facts) if isinstance(one, Finish)], "it has two seconds to answer"
    [finish] = [one for one in play([*facts, Tick()], step=1.0) if isinstance(one, Finish)]
    assert (finish.exit_code, finish.error, finish.lost_worker) == (3, "WorkerLost", 1)
