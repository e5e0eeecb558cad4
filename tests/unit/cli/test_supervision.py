"""What the launcher decides, for orders of events that real processes rarely show."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.supervision import (
    CLEAN_STOP,
    LAST_WORD,
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
from shoal.events import WorkerDied, WorkerJoined, WorkerLeft
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


facts = st.one_of(
    st.builds(WorkerExited, st.integers(0, 2), st.sampled_from([0, 1, -9])),
    st.builds(joined, st.integers(0, 2)),
    st.builds(left, st.integers(0, 2)),
    st.builds(died, st.integers(0, 2)),
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
    out += supervisor.handle(Tick(), 30.0)
    assert [isinstance(instruction, Finish) for instruction in out].count(True) == 1
    assert isinstance(out[-1], Finish)


def test_a_coordinator_that_does_not_answer_does_not_keep_a_lost_job_alive() -> None:
    facts: list[Fact] = [joined(0), joined(1), WorkerExited(1, -9), Tick()]
    assert not [one for one in play(facts) if isinstance(one, Finish)], "it has two seconds to answer"
    [finish] = [one for one in play([*facts, Tick()], step=1.0) if isinstance(one, Finish)]
    assert (finish.exit_code, finish.error, finish.lost_worker) == (3, "WorkerLost", 1)
