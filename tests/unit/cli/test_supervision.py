"""What the launcher decides, for orders of events that real processes rarely show."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.orders import (
    AskForNumber,
    AskToStop,
    CoordinatorBack,
    CoordinatorExited,
    Fact,
    Finish,
    Instruction,
    InterruptWorkers,
    KillCoordinator,
    RestartCoordinator,
    Say,
    Signalled,
    StartWorker,
    TellExit,
    Tick,
    WorkerExited,
)
from shoal.cli.supervision import (
    ANSWER,
    CLEAN_STOP,
    LAST_WORD,
    RESTARTS,
    RESTARTS_WITHIN,
    SAVING_STOP,
    SAVING_WORD,
    Supervisor,
)
from shoal.events import (
    CheckpointLost,
    CheckpointPublished,
    CheckpointStarted,
    StopAgreed,
    WorkerDied,
    WorkerFailed,
    WorkerJoined,
    WorkerLeft,
)
from shoal.wire.messages import Ended, Enlisted

BACK = CoordinatorBack()
GOOD = Ended(exit_code=0, error="", text="all 2 workers finished")
LOST = Ended(exit_code=3, error="WorkerLost", text="worker 1 was killed by SIGKILL in step 4")
CTRL_C = Signalled(signal.SIGINT)


def joined(worker: int) -> WorkerJoined:
    return WorkerJoined(worker=worker, host="here", process=10 + worker, address="127.0.0.1:9")


def left(worker: int) -> WorkerLeft:
    return WorkerLeft(worker=worker, step=1, reason="finished")


def handed_over(worker: int) -> WorkerLeft:
    return WorkerLeft(worker=worker, step=1, reason="got SIGTERM", is_handover=True)


def died(worker: int) -> WorkerDied:
    return WorkerDied(worker=worker, host="here", process=1, step=4, operation="", reason="")


def saving(name: str, *, is_last: bool = False) -> CheckpointStarted:
    return CheckpointStarted(checkpoint=name, step=1, reason="every step", is_last=is_last)


def saved(name: str) -> CheckpointPublished:
    return CheckpointPublished(checkpoint=name, step=1, size=1, seconds=1, blocked=0, removed=(), reason="every step")


def unsaved(name: str) -> CheckpointLost:
    return CheckpointLost(checkpoint=name, step=1, worker=0, reason="no space left on device")


def play(facts: Sequence[Fact], *, workers: int = 2, step: float = 0.01) -> list[Instruction]:
    """From the moment on that the coordinator answers."""
    supervisor = connected(workers)
    out: list[Instruction] = []
    for number, fact in enumerate(facts):
        out += supervisor.handle(fact, number * step)
    return out


def connected(workers: int) -> Supervisor:
    supervisor = Supervisor(workers)
    assert supervisor.handle(BACK, 0.0) == ()
    return supervisor


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
    supervisor = connected(1)
    supervisor.handle(WorkerExited(0, 0), 5.0)
    assert supervisor.deadline == 5.0 + LAST_WORD
    assert isinstance(supervisor.handle(Tick(), 5.0 + LAST_WORD)[0], Finish)


# The coordinator comes back

KILLED = CoordinatorExited("was killed by SIGKILL")


def test_a_coordinator_that_dies_is_started_again_unless_it_had_said_its_last_word() -> None:
    assert play([joined(0), KILLED]) == [RestartCoordinator()]
    assert play([joined(0), left(0), GOOD, CoordinatorExited("exited with code 0")], workers=1) == []


def test_a_coordinator_that_gives_up_before_it_answered_once_ends_the_job() -> None:
    [finish] = Supervisor(2).handle(CoordinatorExited("exited with code 9 (no such store)", may_return=False), 1.0)
    assert isinstance(finish, Finish)
    assert finish.exit_code == 70
    assert "exited with code 9 (no such store)" in finish.text


def test_a_coordinator_that_dies_again_and_again_ends_the_job() -> None:
    supervisor = connected(2)
    for number in range(RESTARTS):
        assert supervisor.handle(KILLED, float(number)) == (RestartCoordinator(),)
        supervisor.handle(BACK, number + 0.5)
    [finish] = supervisor.handle(KILLED, RESTARTS_WITHIN - 1)
    assert isinstance(finish, Finish)
    assert f"was killed by SIGKILL, {RESTARTS + 1} times within a minute" in finish.text


def test_a_coordinator_that_dies_now_and_then_does_not() -> None:
    supervisor = connected(2)
    for number in range(3 * RESTARTS):
        assert supervisor.handle(KILLED, number * RESTARTS_WITHIN / RESTARTS) == (RestartCoordinator(),)


def test_a_coordinator_that_is_back_is_told_what_it_may_have_missed() -> None:
    facts: list[Fact] = [joined(0), joined(1), KILLED, WorkerExited(1, -9)]
    assert play(facts) == [RestartCoordinator(), TellExit(1, -9)], "no number is asked for while nobody answers"
    assert play([*facts, BACK])[2:] == [TellExit(1, -9), AskForNumber()]
    assert play([*facts, BACK, KILLED, BACK])[4:] == [RestartCoordinator(), TellExit(1, -9), AskForNumber()]


def test_a_stop_survives_the_coordinator() -> None:
    asked = AskToStop("interrupted by Ctrl-C", 130)
    out = play([joined(0), joined(1), CTRL_C, KILLED, BACK])
    assert [one for one in out if not isinstance(one, Say)] == [asked, RestartCoordinator(), asked]
    assert isinstance(play([joined(0), CTRL_C, KILLED, CTRL_C])[-1], Finish)


def test_exits_of_short_scripts_wait_for_a_coordinator_that_is_still_coming_up() -> None:
    supervisor = Supervisor(1)
    assert supervisor.handle(WorkerExited(0, 0), 1.0) == (TellExit(0, 0),)
    assert supervisor.handle(Tick(), 100.0) == ()
    assert supervisor.handle(BACK, 101.0) == (TellExit(0, 0),)
    assert supervisor.deadline == 101.0 + LAST_WORD


# Workers are replaced


@pytest.mark.parametrize("code", [1, -9])
def test_a_worker_that_ends_badly_is_replaced_under_a_new_number_in_its_place(code: int) -> None:
    out = play([joined(0), joined(1), WorkerExited(1, code), Enlisted(worker=2)])
    assert out[:2] == [TellExit(1, code), AskForNumber()]
    assert isinstance(start := out[2], StartWorker)
    assert (start.worker, start.place) == (2, 1)
    assert start.reason.startswith("worker 1 ")


def test_a_worker_that_hands_over_is_replaced_whichever_news_comes_first() -> None:
    for facts in ([handed_over(1), WorkerExited(1, 0)], [WorkerExited(1, 0), handed_over(1)]):
        out = play([joined(0), joined(1), *facts, Enlisted(worker=2)])
        assert [type(one) for one in out] == [TellExit, AskForNumber, StartWorker]


def test_a_worker_whose_script_is_done_is_not_replaced_whichever_news_comes_first() -> None:
    for code in (0, 5):
        for facts in ([left(1), WorkerExited(1, code)], [WorkerExited(1, code), left(1)]):
            out = play([joined(0), joined(1), *facts, Enlisted(worker=2)])
            assert not any(isinstance(one, StartWorker) for one in out)


def test_a_joined_worker_that_ends_with_0_is_replaced_once_the_coordinator_calls_it_dead() -> None:
    facts: list[Fact] = [joined(0), joined(1), WorkerExited(1, 0)]
    assert play(facts) == [TellExit(1, 0)]
    assert play([*facts, died(1)]) == [TellExit(1, 0), AskForNumber()]


@pytest.mark.parametrize("news", [CTRL_C, LOST, left(0), StopAgreed(step=3, reason="enough")])
def test_nobody_is_replaced_in_a_job_that_ends(news: Fact) -> None:
    facts: list[Fact] = [joined(0), joined(1), news, WorkerExited(1, -9), Enlisted(worker=2)]
    assert not any(isinstance(one, AskForNumber | StartWorker) for one in play(facts))
    facts = [joined(0), joined(1), WorkerExited(1, -9), news, Enlisted(worker=2)]
    assert not any(isinstance(one, StartWorker) for one in play(facts))


def test_a_job_whose_last_worker_died_waits_for_the_replacement() -> None:
    supervisor = connected(1)
    supervisor.handle(joined(0), 0.0)
    supervisor.handle(WorkerExited(0, -9), 1.0)
    assert supervisor.handle(Tick(), 20.0) == ()
    [start] = supervisor.handle(Enlisted(worker=1), 20.0)
    assert isinstance(start, StartWorker)


def test_a_coordinator_that_owes_an_answer_for_too_long_is_killed() -> None:
    supervisor = connected(2)
    supervisor.handle(WorkerExited(1, -9), 1.0)
    assert supervisor.deadline == 1.0 + ANSWER
    assert supervisor.handle(Tick(), 1.0 + ANSWER) == (KillCoordinator(),)
    assert supervisor.handle(Tick(), 2.0 + ANSWER) == (), "once is enough"
    assert supervisor.handle(KILLED, 3.0 + ANSWER) == (RestartCoordinator(),)
    assert AskForNumber() in supervisor.handle(BACK, 4.0 + ANSWER)


def test_exit_codes_of_lost_workers_do_not_spoil_a_good_end() -> None:
    facts: list[Fact] = [joined(0), joined(1), WorkerExited(1, -9), Enlisted(worker=2), joined(2), left(0), left(2)]
    assert finishes([*facts, GOOD, WorkerExited(0, 0), WorkerExited(2, 0)]).exit_code == 0
    assert finishes([*facts, GOOD, WorkerExited(0, 0), WorkerExited(2, 5)]).exit_code == 1


def test_a_process_that_never_got_in_does_not_hold_up_a_good_end() -> None:
    finish = finishes([joined(0), WorkerExited(1, -9), Enlisted(worker=2), left(0), GOOD, WorkerExited(0, 0)])
    assert (finish.exit_code, finish.text) == (0, "")


def test_a_worker_from_elsewhere_is_waited_for() -> None:
    facts: list[Fact] = [joined(0), joined(1), joined(7), left(0), left(1), WorkerExited(0, 0), WorkerExited(1, 0)]
    assert not any(isinstance(one, Finish) for one in play([*facts, Tick(), Tick()], step=100.0))
    assert finishes([*facts, left(7), GOOD]).exit_code == 0
    failed = WorkerFailed(worker=7, step=1, error="ScriptFailed", text="")
    assert isinstance(play([*facts, failed, Tick()], step=100.0)[-1], Finish)


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
    supervisor = connected(2)
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


# Checkpoints at the end


@pytest.mark.parametrize("end", [saved, unsaved])
def test_stop_waits_for_the_last_checkpoint_and_then_a_moment(
    end: Callable[[str], CheckpointPublished | CheckpointLost],
) -> None:
    supervisor = connected(1)
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
    [finish] = supervisor.handle(Tick(), 1.0 + SAVING_STOP)
    assert isinstance(finish, Finish)


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
    assert isinstance(finish, Finish)


def test_interrupted_scripts_do_not_take_the_publication_with_them() -> None:
    facts: list[Fact] = [joined(0), saving("a", is_last=True), left(0), CTRL_C, WorkerExited(0, 1), WorkerExited(1, 1)]
    assert not any(isinstance(instruction, Finish) for instruction in play(facts))
    assert finishes([*facts, saved("a")]).exit_code == 130


facts = st.one_of(
    st.builds(WorkerExited, st.integers(0, 4), st.sampled_from([0, 1, -9])),
    st.builds(joined, st.integers(0, 4)),
    st.builds(left, st.integers(0, 4)),
    st.builds(handed_over, st.integers(0, 4)),
    st.builds(died, st.integers(0, 4)),
    st.builds(lambda worker: Enlisted(worker=worker), st.integers(3, 6)),
    st.sampled_from([saving("a"), saving("b", is_last=True), saved("a"), unsaved("b")]),
    st.sampled_from([GOOD, LOST, CTRL_C, Signalled(signal.SIGHUP), Tick(), BACK, CoordinatorExited("exited")]),
)


@given(st.lists(facts, max_size=30))
def test_whatever_happens_two_signals_are_the_end_and_nothing_comes_after_it(happened: list[Fact]) -> None:
    supervisor = Supervisor(3)
    out: list[Instruction] = []
    for number, fact in enumerate([*happened, CTRL_C, CTRL_C, Tick()]):
        out += supervisor.handle(fact, number * 0.1)
    assert [isinstance(instruction, Finish) for instruction in out].count(True) == 1
    assert isinstance(out[-1], Finish)


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
