"""What the displays write."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import msgspec
import pytest

from shoal import events
from shoal.values import TimeShares
from shoal.watch.screen.display import Display, Plain, open_display
from shoal.watch.screen.live import Live
from shoal.watch.wording import amount, duration, number, span

SHARES = TimeShares(compute=6.0, communication=2.0, waiting=1.0, input=0.5, checkpoint=0.2, other=0.3)


def published(step: int, **changes: Any) -> events.CheckpointPublished:
    told = events.CheckpointPublished(
        checkpoint=f"step-{step:08}-g1", step=step, size=412_300_000, seconds=0.41, blocked=0.0021, removed=(),
        reason="every 1 step",
    )  # fmt: skip
    return msgspec.structs.replace(told, **changes)


def story(workers: int = 2, host: str = "here") -> list[events.Event]:
    """A short job with one of everything that people are told. `host`: with {} for the worker's number."""
    told: list[events.Event] = [
        events.WorkerJoined(worker=worker, host=host.format(worker), process=1, address="127.0.0.1:9")
        for worker in range(workers)
    ]
    told.append(events.LoopStarted(loop=0, epochs=2, steps_per_epoch=10, global_batch=20, samples_per_epoch=200))
    told += [
        events.StepsApplied(
            worker=worker,
            generation=1,
            step=step,
            epoch=step // 10,
            samples=100 * report,
            seconds=1.0 * report,
            shares=msgspec.structs.replace(
                SHARES, **{name: report * part for name, part in msgspec.structs.asdict(SHARES).items()}
            ),
            bytes_sent=5 * report,
            values={"loss": 1.0 / step},
        )
        for report, step in enumerate((1, 5, 9), start=1)
        for worker in range(workers)
    ]
    told += [
        events.StepVoided(
            worker=0, generation=1, step=10, operation="all-reduce", reason="worker 1 is unreachable\nTraceback"
        ),
        events.StepVoided(worker=1, generation=1, step=10, operation="all-reduce", reason="worker 0 is unreachable"),
        events.GenerationFormed(
            generation=2, workers=(0, 1), schedule="ring", codec="identity", reason="all are alive"
        ),
        events.ProgressResumed(
            generation=2, step=10, time=9.0, seconds=0.5, redone=1, samples_redone=20, reason="all are alive"
        ),
        published(8),
        published(9),
        events.CheckpointLost(checkpoint="step-00000010-g2", step=10, worker=1, reason="disk full\nand so on"),
        events.EpochEnded(epoch=0, step=10, samples=200, seconds=2.0),
        events.Evaluated(step=10, samples=50, scores={"accuracy": 0.9375}),
        events.StopRequested(worker=1, reason="loss is low"),
        events.StopAgreed(step=11, reason="loss is low"),
        events.Advised(worker=0, text="the batch is small"),
        *(events.ScriptDoubtful(worker=worker, text="model 1 is not optimized") for worker in range(workers)),
        events.JobEnded(outcome="stopped", exit_code=0, reason="loss is low", seconds=12.0),
    ]
    return told


def play(display: Display, told: list[events.Event]) -> None:
    for time, event in enumerate(told):
        display.show(event, float(time))
    display.print("[worker 1] a line")
    display.close()
    display.close()
    display.summarize()


EXPECTED = [
    "step 10 was void and is redone: all-reduce: worker 1 is unreachable",
    "generation 2 with 2 workers: all are alive",
    "training goes on at step 10 after 0.5 s; redone: 1 step (20 samples)",
    "checkpoint at step 8: 412 MB in 0.4 s, training held up 2 ms",
    "warning: the checkpoint at step 10 is lost: worker 1: disk full; training goes on, and the next one will be tried",
    "epoch 1 ended at step 10: 200 samples, 100 samples/s",
    "evaluated at step 10: accuracy 0.9375 (50 samples)",
    "worker 1 asks to stop: loss is low",
    "stopping after step 11: loss is low",
    "note from worker 0: the batch is small",
    "shoal: warning: model 1 is not optimized",
    "[worker 1] a line",
    "stopped (loss is low): 9 steps in 0:12, accuracy 0.9375, 200 samples/s, 1 void step was redone, "
    "1 checkpoint was lost",
]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = open_display("auto", 2)
    assert isinstance(display, Plain)
    play(display, story())
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line in EXPECTED] == EXPECTED
    assert "step 1/20, epoch 1/2, loss 1.0000, 100 samples/s" in shown
    assert "worker 0 is unreachable" not in shown
    assert "checkpoint at step 9" not in shown
    table = shown.splitlines()[-3:]
    assert table[0].split() == [
        "worker",
        "samples",
        "compute",
        "communication",
        "waiting",
        "input",
        "checkpoint",
        "other",
    ]
    assert table[1].split() == ["0", "300", "60.0%", "20.0%", "10.0%", "5.0%", "2.0%", "3.0%"]


def test_step_that_breaks_because_the_job_ends_is_not_announced_as_redone(capsys: pytest.CaptureFixture[str]) -> None:
    void = events.StepVoided(worker=0, generation=1, step=10, operation="all-reduce", reason="worker 1 is gone")
    display = Plain()
    display.show(void, 0.0)
    assert capsys.readouterr().out == ""
    formed = events.GenerationFormed(generation=2, workers=(0,), schedule="ring", codec="identity", reason="all")
    display.show(formed, 1.0)
    assert capsys.readouterr().out.count("step 10 was void") == 1
    late = events.StepVoided(worker=1, generation=1, step=9, operation="all-reduce", reason="late news")
    display.show(late, 2.0)
    assert capsys.readouterr().out.count("late news") == 1


def test_plain_progress_is_not_more_than_a_line_every_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    step = story()[3]
    for time in range(100):
        display.show(step, time * 0.1)
    assert len(capsys.readouterr().out.splitlines()) == 5


def live_output(monkeypatch: pytest.MonkeyPatch, workers: int, *, columns: int, lines: int, host: str = "here") -> str:
    """What the live display writes for the story to a terminal of that size."""
    for name, value in (("COLUMNS", str(columns)), ("LINES", str(lines)), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    written = io.StringIO()
    written.isatty = lambda: True  # type: ignore[method-assign]  a terminal, as far as it is asked
    with contextlib.redirect_stdout(written):
        display = open_display("auto", workers)
        assert isinstance(display, Live)
        play(display, story(workers, host))
    return written.getvalue()


def test_live_draws_the_job_and_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    written = live_output(monkeypatch, 2, columns=160, lines=40)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    for line in EXPECTED:
        assert line in shown
    assert "step 9/20  epoch 1/2  loss 0.1111" in shown
    assert (
        "worker 1  step 9  100 samples/s  compute 60%  communication 20%  waiting 10%  input 5%  checkpoint 2%" in shown
    )
    assert re.search(r"\x1b\[1;31mwarning: the checkpoint at step 10 is lost", written)
    assert "1 of 2 workers are here" in shown
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")  # the cursor is visible again


def test_live_says_where_workers_are_if_they_are_on_several_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = live_output(monkeypatch, 2, columns=160, lines=40, host="node{}")
    assert "worker 0 on node0  step" in drawn
    assert "worker 1 on node1  step" in drawn
    assert "2 workers on 2 machines" in drawn


def test_live_fits_many_workers_into_a_small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "and 94 more workers" in live_output(monkeypatch, 100, columns=80, lines=10)


def test_plain_tells_of_checkpoints_every_ten_seconds_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    for time in range(40):
        display.show(published(time), time * 0.5)
        display.show(events.CheckpointDeferred(step=time, reason="the last one is being written"), time * 0.5)
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("checkpoint at step")] == [
        f"checkpoint at step {step}: 412 MB in 0.4 s, training held up 2 ms" for step in (0, 20)
    ]
    assert [line for line in shown if "made later" in line] == [
        f"the checkpoint due at step {step} is made later: the last one is being written" for step in (0, 20)
    ]


def test_the_checkpoint_that_the_end_waits_for_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    display.show(published(1), 0.0)
    last = published(2, mark="best", size=999, seconds=200.0, blocked=0.0)
    reason = "interrupted by SIGTERM"
    display.show(events.CheckpointStarted(checkpoint=last.checkpoint, step=2, reason=reason, is_last=True), 1.0)
    display.show(last, 2.0)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "writing the last checkpoint, at step 2: interrupted by SIGTERM",
        "checkpoint at step 2, marked best: 999 bytes in 3:20, training held up under 1 ms",
    ]


def test_every_lost_checkpoint_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    for step in range(3):
        name = f"step-{step:08}-g1"
        display.show(events.CheckpointLost(checkpoint=name, step=step, worker=None, reason="no store"), step * 0.1)
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(";")[0] for line in shown] == [
        f"warning: the checkpoint at step {step} is lost: no store" for step in range(3)
    ]


def test_a_resumed_job_says_where_from(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    damaged = events.CheckpointRefused(
        checkpoint="step-00000600-g1", file="part-0-of-4.safetensors", reason="cut short"
    )
    display.show(damaged, 0.0)
    display.show(events.Resumed(checkpoint="step-00000400-g1", step=400, workers=4, reason="the newest"), 1.0)
    display.show(story()[3], 2.0)
    display.show(events.JobEnded(outcome="finished", exit_code=0, reason="", seconds=12.0), 3.0)
    display.summarize()
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [
        "warning: step-00000600-g1/part-0-of-4.safetensors cannot be used: cut short; "
        "looking at the checkpoint before it",
        "resumed at step 400 from step-00000400-g1, written by 4 workers",
    ]
    assert "finished: 400 steps (0 since it was resumed) in 0:12, loss 1.0000, 100 samples/s" in shown


def test_quiet_prints_warnings_and_what_workers_print(capsys: pytest.CaptureFixture[str]) -> None:
    play(open_display("none", 2), story())
    assert capsys.readouterr().out == "shoal: warning: model 1 is not optimized\n[worker 1] a line\n"


@pytest.mark.parametrize("progress", ["plain", "live"])
def test_job_that_reports_nothing_has_no_summary(progress: str, capsys: pytest.CaptureFixture[str]) -> None:
    display = open_display(progress, 1)
    display.show(events.JobEnded(outcome="finished", exit_code=0, reason="", seconds=1.0), 0.0)
    display.close()
    display.summarize()
    assert "finished" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0000"),
        (0.43217, "0.4322"),
        (123.456, "123.46"),
        (1e-5, "1.000e-05"),
        (2e6, "2.000e+06"),
        (float("nan"), "nan"),
    ],
)
def test_numbers_read_well(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3661, "1:01:01")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "under 1 ms"), (0.0021, "2 ms"), (0.099, "99 ms"), (0.41, "0.4 s"), (9.96, "10 s"), (185, "3:05")],
)
def test_spans_of_time_read_well(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(999, "999 bytes"), (1000, "1.0 kB"), (999_499, "999 kB"), (999_500, "1.0 MB"), (1_500_000_000, "1.5 GB"),
     (7 * 10**15, "7000 TB")],
)  # fmt: skip
def test_amounts_of_bytes_read_well(size: int, text: str) -> None:
    assert amount(size) == text


def test_every_checkpoint_that_the_script_marks_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    for step in (1, 2, 3):
        display.show(published(step), 0.1 * step)
    for step in (4, 5):
        display.show(published(step, mark="best"), 0.1 * step)
    told = re.findall(r"checkpoint at step (\d)(, marked best)?:", capsys.readouterr().out)
    assert told == [("1", ""), ("4", ", marked best"), ("5", ", marked best")]
