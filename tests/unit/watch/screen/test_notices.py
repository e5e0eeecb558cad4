"""What displays say and draw when members of a job come and go."""

from __future__ import annotations

import contextlib
import io
import re

import msgspec
import pytest

from shoal import events
from shoal.values import HostLink
from shoal.watch.screen.display import Plain
from shoal.watch.screen.live import Live
from support.records import applied

STEP = applied(0, 1)


def formed(generation: int, *workers: int, reason: str = "why") -> events.GenerationFormed:
    return events.GenerationFormed(
        generation=generation, workers=workers, schedule="ring", codec="identity", reason=reason
    )


DIED = events.WorkerDied(worker=2, host="h", process=7, step=40, operation="x", reason="worker 2 was killed by SIGKILL")
TRACEBACK = "Traceback (most recent call last):\n  File x\nValueError: no"
SLOW = HostLink(source=3, target=0, source_host="c", target_host="a", latency=0.00021, bandwidth=2.5e6)
TOLD: list[tuple[events.Event, str]] = [
    (
        events.LinksMeasured(generation=1, hosts=3, links=(SLOW,), measured=6, seconds=0.1),
        "the slowest of 6 links between 3 hosts goes from c (worker 3) to a (worker 0): 2.5 MB/s, latency 0.21 ms",
    ),
    (
        events.CarrierChosen(generation=1, carrier="shoal", is_asked=False, reason="rank 2 on b has no GPU"),
        "tensors of GPUs go through host memory: rank 2 on b has no GPU",
    ),
    (DIED, "worker 2 was killed by SIGKILL"),
    (
        events.FaultInjected(fault="stop", worker=1, seconds=8.0, reason="stop worker every 30s for 8s"),
        "fault on purpose: stop worker 1 for 8.0 s (stop worker every 30s for 8s)",
    ),
    (
        events.FaultInjected(fault="kill-coordinator", worker=None, seconds=None, reason="kill-coordinator at 9s"),
        "fault on purpose: kill-coordinator (kill-coordinator at 9s)",
    ),
    (
        events.WorkerFailed(worker=1, step=30, error="ScriptFailed", text=TRACEBACK),
        "worker 1 failed in step 30: ValueError: no",
    ),
    (
        events.WorkerFailed(
            worker=3, step=0, error="TermsDiffer", text="loop 1: batch size is 4 in the job and 2 here"
        ),
        "worker 3 was turned away: loop 1: batch size is 4 in the job and 2 here",
    ),
    (
        events.WorkerExpelled(worker=1, step=9, reason="it was silent for 5 s"),
        "worker 1 was expelled at step 9: it was silent for 5 s",
    ),
    (
        events.WorkerLeft(worker=1, step=9, reason="SIGTERM", is_handover=True),
        "worker 1 hands over after step 9: SIGTERM",
    ),
    (
        events.WorkerReturned(worker=1, generation=2),
        "worker 1 had lost the coordinator and is back; it was in the job all the time",
    ),
    (
        events.WorkerStarted(worker=4, is_spare=True, reason="worker 2 was killed"),
        "worker 4 is started, a spare that was ready: worker 2 was killed",
    ),
    (
        events.Waiting(workers=1, needed=2, reason="worker 2 was killed"),
        "waiting, 1 of 2 workers are here: worker 2 was killed",
    ),
    (
        events.BatchChosen(generation=2, workers=3, global_batch=24, worker_batch=8.0, lr_factor=0.75, reason="why"),
        "3 workers take 24 samples a step, 8 each; learning rates are multiplied by 0.75: why",
    ),
    (
        events.ProgressResumed(generation=2, step=41, time=9.0, seconds=0.8, redone=2, samples_redone=64, reason="why"),
        "training goes on at step 41 after 0.8 s; redone: 2 steps (64 samples)",
    ),
    (
        events.ReplicaDiffered(worker=1, step=100, reason="it copies from worker 0"),
        "warning: the parameters of worker 1 differed at step 100: it copies from worker 0",
    ),
    (
        events.ReplicaDiffered(worker=None, step=100, reason="no majority"),
        "warning: the parameters of workers differed at step 100: no majority",
    ),
    (
        events.CoordinatorReturned(generation=2, reason="its process was killed"),
        "the coordinator is back, in generation 2: its process was killed",
    ),
]


@pytest.mark.parametrize(("event", "line"), TOLD, ids=lambda value: type(value).__name__)
def test_what_happens_to_members_is_told_at_once(
    event: events.Event, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Plain()
    display.show(STEP, 0.0)
    capsys.readouterr()
    display.show(event, 1.0)
    assert capsys.readouterr().out == f"{line}\n"


def test_a_script_that_fails_at_once_is_told_by_the_end_of_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    display.show(events.WorkerFailed(worker=1, step=0, error="ScriptFailed", text=TRACEBACK), 1.0)
    display.show(events.WorkerLeft(worker=0, step=9, reason="the script is done"), 2.0)
    assert capsys.readouterr().out == ""


def test_a_death_is_told_without_the_void_steps_it_caused(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    void = events.StepVoided(worker=0, generation=1, step=40, operation="all-reduce", reason="worker 2 is gone")
    for event in (formed(1, 0, 1, 2), DIED, void, formed(2, 0, reason="1 worker goes on"), void):
        display.show(event, 1.0)
    assert capsys.readouterr().out.splitlines() == [
        "worker 2 was killed by SIGKILL",
        "generation 2 with 1 worker: 1 worker goes on",
    ]


def test_workers_that_come_back_to_a_new_coordinator_need_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    display.show(events.CoordinatorReturned(generation=1, reason="started again"), 1.0)
    for worker in range(100):
        display.show(events.WorkerReturned(worker=worker, generation=1), 2.0)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_live_shows_who_is_in_the_job_now(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "160"), ("LINES", "40"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    written = io.StringIO()
    written.isatty = lambda: True  # type: ignore[method-assign]  a terminal, as far as it is asked
    joined = events.WorkerJoined(worker=4, host="here", process=1, address="127.0.0.1:9")

    def drawn(display: Live, event: events.Event, time: float) -> str:
        written.seek(0)
        written.truncate()
        display.show(event, time)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())

    with contextlib.redirect_stdout(written):
        display = Live(3)
        for event in (formed(1, 0, 1, 2), *(msgspec.structs.replace(STEP, worker=n) for n in range(3))):
            display.show(event, 1.0)
        assert "worker 2  gone at step 1" in drawn(display, DIED, 2.0)
        shown = drawn(display, joined, 3.0)
        assert "worker 4  is here and waits for its turn" in shown
        waiting = events.Waiting(workers=2, needed=3, reason="worker 2 was killed")
        assert "waiting: 2 of 3 workers are here" in drawn(display, waiting, 4.0)
        display.show(formed(2, 0, 1, 4), 10.0)
        shown = drawn(display, STEP, 11.0)
        assert "worker 4  has come in" in shown
        assert "worker 2 " not in shown
        assert "waiting: 2 of" not in shown
        display.close()
