"""What the launcher decides when processes die and the job goes on."""

from __future__ import annotations

import pytest

from shoal.events import (
    StopAgreed,
    Waiting,
    WorkerFailed,
)
from shoal.launching import texts
from shoal.launching.supervision.orders import (
    AskForNumber,
    AskToStop,
    CoordinatorExited,
    Fact,
    FinishJob,
    KillCoordinator,
    RestartCoordinator,
    Say,
    StartWorker,
    TellExit,
    TimePassed,
    WorkerExited,
)
from shoal.launching.supervision.supervisor import (
    ANSWER,
    CLEAN_STOP,
    DISK_WORD,
    LAST_WORD,
    RESTARTS,
    RESTARTS_WITHIN,
    Supervisor,
)
from shoal.wire.messages import Enlisted
from support.supervision import (
    BACK,
    CTRL_C,
    GOOD,
    KILLED,
    LOST,
    STOP_NOTED,
    connected,
    died,
    finishes,
    handed_over,
    joined,
    left,
    play,
    unwritten,
    written,
)

# The coordinator comes back


def test_a_coordinator_that_dies_is_started_again_unless_it_had_said_its_last_word() -> None:
    assert play([joined(0), KILLED]) == [RestartCoordinator()]
    assert play([joined(0), left(0), GOOD, CoordinatorExited("exited with code 0")], workers=1) == []


def test_a_coordinator_that_gives_up_before_it_answered_once_ends_the_job() -> None:
    [finish] = Supervisor(2).handle(CoordinatorExited("exited with code 9 (no such store)", may_return=False), 1.0)
    assert isinstance(finish, FinishJob)
    assert finish.exit_code == 70
    assert "exited with code 9 (no such store)" in finish.text


def test_a_coordinator_that_dies_again_and_again_ends_the_job() -> None:
    supervisor = connected(2)
    for number in range(RESTARTS):
        assert supervisor.handle(KILLED, float(number)) == (RestartCoordinator(),)
        supervisor.handle(BACK, number + 0.5)
    [finish] = supervisor.handle(KILLED, RESTARTS_WITHIN - 1)
    assert isinstance(finish, FinishJob)
    assert finish.text == texts.coordinator_gone("was killed by SIGKILL", RESTARTS + 1)


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
    asked = AskToStop(STOP_NOTED.reason, 130)
    out = play([joined(0), joined(1), CTRL_C, KILLED, BACK])
    assert [one for one in out if not isinstance(one, Say)] == [asked, RestartCoordinator(), asked]
    assert isinstance(play([joined(0), CTRL_C, KILLED, CTRL_C])[-1], FinishJob)


def test_exits_of_short_scripts_wait_for_a_coordinator_that_is_still_coming_up() -> None:
    supervisor = Supervisor(1)
    assert supervisor.handle(WorkerExited(0, 0), 1.0) == (TellExit(0, 0),)
    assert supervisor.handle(TimePassed(), 100.0) == ()
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
    assert supervisor.handle(TimePassed(), 20.0) == ()
    [start] = supervisor.handle(Enlisted(worker=1), 20.0)
    assert isinstance(start, StartWorker)


def test_a_coordinator_that_owes_an_answer_for_too_long_is_killed() -> None:
    supervisor = connected(2)
    supervisor.handle(WorkerExited(1, -9), 1.0)
    assert supervisor.deadline == 1.0 + ANSWER
    said, killed = supervisor.handle(TimePassed(), 1.0 + ANSWER)
    assert isinstance(said, Say) and "has not answered" in said.text
    assert killed == KillCoordinator()
    assert supervisor.handle(TimePassed(), 2.0 + ANSWER) == (), "once is enough"
    assert supervisor.handle(KILLED, 3.0 + ANSWER) == (RestartCoordinator(),)
    assert AskForNumber() in supervisor.handle(BACK, 4.0 + ANSWER)


def test_a_coordinator_that_waits_for_a_disk_is_left_alone() -> None:
    supervisor = connected(2)
    supervisor.handle(joined(0), 0.0)
    supervisor.handle(WorkerExited(1, -9), 1.0)
    assert supervisor.handle(unwritten(), 2.0) == ()
    assert supervisor.deadline is None, "else the launcher would look again and again"
    assert supervisor.handle(TimePassed(), 10 * ANSWER) == ()
    assert supervisor.handle(written(), 10 * ANSWER) == ()
    assert supervisor.deadline == 11 * ANSWER, "from now on it can answer"
    assert KillCoordinator() in supervisor.handle(TimePassed(), 11 * ANSWER)


def test_a_coordinator_that_has_died_waits_for_no_disk() -> None:
    supervisor = connected(2)
    supervisor.handle(unwritten(), 0.0)
    supervisor.handle(KILLED, 1.0)
    supervisor.handle(BACK, 2.0)
    supervisor.handle(WorkerExited(1, -9), 3.0)
    assert KillCoordinator() in supervisor.handle(TimePassed(), 3.0 + ANSWER)


def test_a_job_whose_processes_are_gone_waits_longer_for_a_last_word_that_a_disk_holds_up() -> None:
    supervisor = connected(1)
    for fact in (joined(0), left(0), WorkerExited(0, 0)):
        assert not any(isinstance(out, FinishJob) for out in supervisor.handle(fact, 0.0))
    supervisor.handle(unwritten(), 0.1)
    assert supervisor.handle(TimePassed(), LAST_WORD + 1) == ()
    [finish] = supervisor.handle(TimePassed(), 0.1 + DISK_WORD)
    assert isinstance(finish, FinishJob) and finish.exit_code == 0


def test_ctrl_c_says_why_workers_cannot_be_told() -> None:
    supervisor = connected(2)
    supervisor.handle(joined(0), 0.0)
    supervisor.handle(unwritten(), 0.0)
    asked, said = supervisor.handle(CTRL_C, 1.0)
    assert isinstance(asked, AskToStop)
    assert isinstance(said, Say) and "waits for the disk" in said.text
    [finish] = supervisor.handle(TimePassed(), 1.0 + CLEAN_STOP)
    assert isinstance(finish, FinishJob) and finish.exit_code == 130


def test_exit_codes_of_lost_workers_do_not_spoil_a_good_end() -> None:
    facts: list[Fact] = [joined(0), joined(1), WorkerExited(1, -9), Enlisted(worker=2), joined(2), left(0), left(2)]
    assert finishes([*facts, GOOD, WorkerExited(0, 0), WorkerExited(2, 0)]).exit_code == 0
    assert finishes([*facts, GOOD, WorkerExited(0, 0), WorkerExited(2, 5)]).exit_code == 1


def test_a_process_that_never_got_in_does_not_hold_up_a_good_end() -> None:
    finish = finishes([joined(0), WorkerExited(1, -9), Enlisted(worker=2), left(0), GOOD, WorkerExited(0, 0)])
    assert (finish.exit_code, finish.text) == (0, "")


def test_a_worker_from_elsewhere_is_waited_for() -> None:
    facts: list[Fact] = [joined(0), joined(1), joined(7), left(0), left(1), WorkerExited(0, 0), WorkerExited(1, 0)]
    assert not any(isinstance(one, FinishJob) for one in play([*facts, TimePassed(), TimePassed()], step=100.0))
    assert finishes([*facts, left(7), GOOD]).exit_code == 0
    failed = WorkerFailed(worker=7, step=1, error="ScriptFailed", text="")
    assert isinstance(play([*facts, failed, TimePassed()], step=100.0)[-1], FinishJob)


def test_workers_that_are_lost_while_they_stop_are_replaced_if_nobody_is_left_to_come_to_the_end() -> None:
    facts: list[Fact] = [joined(0), StopAgreed(step=3, reason="enough"), WorkerExited(0, -9), died(0)]
    assert AskForNumber() not in play(facts, workers=1)
    facts.append(Waiting(workers=0, needed=1, reason="worker 0 was killed by SIGKILL"))
    assert AskForNumber() in play(facts, workers=1)


def test_processes_that_the_job_turns_away_are_not_started_for_ever() -> None:
    """The script was changed while the job runs: the job goes on with those that are there, and says so once."""
    supervisor = Supervisor(2, max_failures=2)
    assert supervisor.handle(BACK, 0.0) == ()
    out = [*supervisor.handle(joined(0), 0.0), *supervisor.handle(joined(1), 0.0)]
    out += supervisor.handle(WorkerExited(1, -9), 1.0)
    for worker in (2, 3):
        out += supervisor.handle(Enlisted(worker), 10.0 * worker)
        out += supervisor.handle(joined(worker), 10.0 * worker)
        out += supervisor.handle(WorkerFailed(worker=worker, step=0, error="TermsDiffer", text="batch"), 10.0 * worker)
        out += supervisor.handle(WorkerExited(worker, 8), 10.0 * worker)
        out += supervisor.handle(TimePassed(), 10.0 * worker + 9.0)
    assert [order.worker for order in out if isinstance(order, StartWorker)] == [2, 3]
    assert sum(isinstance(order, AskForNumber) for order in out) == 2
    [said] = [order.text for order in out if isinstance(order, Say)]
    assert "each of 2 processes" in said and "turned away" in said
    assert not any(isinstance(order, FinishJob) for order in out)
    assert supervisor.handle(TimePassed(), 10_000.0) == ()
