"""The last words of a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.engines.engine import Engine
from shoal.entry.texts import ran_as_copies
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching import run_job, texts
from shoal.launching.elsewhere.gathering import Elsewhere
from shoal.launching.processes.specs import Job
from shoal.launching.screen import (
    LONGEST_PAUSE,
    QUIET_START,
    SHOWN_LINES,
    STILL_STARTING,
    Closing,
    Screen,
    copies_warning,
    final_message,
    opening,
    verdict,
    without_interrupt,
)
from shoal.launching.supervision.orders import FinishJob
from shoal.values import Address
from shoal.watch.screen.display import open_display

JOB = Job(JobConfig(workers=2), "train.py", (), Path("runs/x"), Path("/tmp/token"), Address("127.0.0.1", 7000))
RAISED = """Traceback (most recent call last):
  File "train.py", line 3, in train
    raise ValueError("no")
ValueError: no
with: a second line
It failed in this way 3 times."""


def words_while_starting(screen: Screen, seconds: list[float], capsys: pytest.CaptureFixture[str]) -> list[int]:
    """How many lines are said at each of these times after the beginning."""
    began, counts = screen._began, []
    for after in seconds:
        screen.say_if_starting("plain", began + after)
        counts.append(len(capsys.readouterr().err.splitlines()))
    return counts


def test_a_script_that_reads_data_for_minutes_is_not_mute(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(open_display("plain", 2), workers=2)
    first, second = QUIET_START + 0.1, QUIET_START + STILL_STARTING + 0.2
    third = second + 2 * STILL_STARTING
    times = [0.0, first, first + 0.1, second, second + 0.1, third - 0.1, third + 0.1, 300.0, 301.0]
    assert words_while_starting(screen, times, capsys) == [0, 1, 0, 1, 0, 0, 1, 1, 0]


def test_a_script_that_never_has_steps_and_prints_nothing_gets_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(open_display("plain", 2), workers=2)
    said = words_while_starting(screen, [float(second) for second in range(36_000)], capsys)
    assert sum(said[3600:]) == 32_400 / LONGEST_PAUSE
    assert sum(said[:3600]) == 11


def test_nothing_is_said_of_starting_after_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(open_display("plain", 2), workers=2)
    screen.hold()
    assert words_while_starting(screen, [QUIET_START + 1, 60.0], capsys) == [0, 0]


def test_nothing_more_is_said_of_starting_once_there_is_output(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(open_display("plain", 2), workers=2)
    screen.worker_lines(0, ["reading data"])
    assert words_while_starting(screen, [QUIET_START + 1, 60.0], capsys) == [0, 0]


def test_a_job_on_other_machines_says_what_starts_before_it_reaches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def no_nodes(_: Address) -> Engine:
        raise UsageError("no node came")

    config = JobConfig(workers=2, on="dask", progress="plain")
    monkeypatch.setattr(run_job, "chosen_engine", lambda *_: Elsewhere(config, no_nodes))
    with pytest.raises(UsageError, match="no node came"):
        run_job.run_job(config, "train.py", ())
    assert capsys.readouterr().err == f"shoal: {texts.gathering(2, 0, 'train.py', 'dask')}\n"
    assert not (tmp_path / "runs").exists()


def test_success_needs_no_words() -> None:
    assert final_message(FinishJob(0, 0.5), JOB, ()) == []


def test_lost_worker_is_shown_with_its_last_lines() -> None:
    printed = tuple(f"line {number}" for number in range(40))
    message = final_message(FinishJob(3, 0.5, "WorkerLost", "worker 1 is gone", 1), JOB, printed)
    assert message[0] == "shoal: error: worker 1 is gone"
    assert "runs/x/logs/worker-1.log" in message[1]
    assert message[2:] == [f"  line {number}" for number in range(40 - SHOWN_LINES, 40)]
    assert "had printed nothing" in final_message(FinishJob(3, 0.5, "WorkerLost", "gone", 1), JOB, ())[1]


def test_traceback_is_shown_as_it_is_and_the_last_line_says_who_raised_what_and_where() -> None:
    frame = '  File "/x/train.py", line 12, in train'
    text = f"the script failed on worker 1 in step 3:\nTraceback (most recent call last):\n{frame}\nValueError: no"
    finish = FinishJob(1, 0.5, "ScriptFailed", text)
    assert final_message(finish, JOB, ()) == [f"shoal: error: {text}"]
    last = verdict(finish, JOB, Closing(2.0, 3), can_resume=False)
    assert last.startswith(texts.script_raised("ValueError at /x/train.py:12", "on worker 1 in step 3"))


@pytest.mark.parametrize(
    ("finish", "closing", "can_resume", "line"),
    [
        (
            FinishJob(0, 0.5),
            Closing(41.2, 1200),
            False,
            "finished in 41 s, 1,200 steps; look at it: shoal report --open runs/x",
        ),
        (FinishJob(0, 0.5), Closing(2.0, 1), True, "finished in 2.0 s, 1 step; look at it: shoal report --open runs/x"),
        (FinishJob(0, 0.5), Closing(2.0), False, "finished in 2.0 s; what it printed is in runs/x/logs"),
        (
            FinishJob(1, 0.5, "ScriptFailed", "worker 1 exited with code 4"),
            Closing(2.0, 7),
            False,
            "failed, after 2.0 s, 7 steps; look at runs/x/logs/worker-1.log",
        ),
        (
            FinishJob(1, 0.5, "ScriptFailed", f"the script failed on worker 1 in step 7:\n{RAISED}"),
            Closing(2.0, 7),
            True,
            "failed: the script raised ValueError at train.py:3 on worker 1 in step 7, after 2.0 s, 7 steps; look at "
            "runs/x/logs/worker-1.log; go on from the last checkpoint: shoal run --resume runs/x",
        ),
        (
            FinishJob(70, 0.5, "ShoalError", "the coordinator process ended"),
            Closing(2.0),
            False,
            "failed, after 2.0 s; look at runs/x/logs",
        ),
        (
            FinishJob(130, 0.5, text="interrupted by Ctrl-C"),
            Closing(2.0, 7),
            True,
            "interrupted by Ctrl-C; the record is in runs/x; `shoal run --resume runs/x` goes on",
        ),
    ],
)
def test_the_last_line_says_how_it_ended_and_what_to_do_next(
    finish: FinishJob, closing: Closing, can_resume: bool, line: str
) -> None:
    assert verdict(finish, JOB, closing, can_resume=can_resume) == line


def test_the_first_line_says_what_starts_and_where_its_record_is() -> None:
    assert opening(JOB) == "2 workers run train.py; the record is in runs/x"
    one = replace(JOB, config=JobConfig(workers=1, resume="runs/x"))
    assert opening(one) == "1 worker goes on with train.py; the record is in runs/x"


@pytest.mark.parametrize(
    ("text", "joined", "warns"),
    [
        ("import math\nprint(math.pi)\n", False, True),
        ("import math\nprint(math.pi)\n", True, False),
        ("import os\nprint(os.environ['RANK'])\n", False, False),  # it knows that it is one of several
        ("import torch\n", False, False),  # torch loads our module, which says it better
        ("from somebody import train\ntrain()\n", False, False),  # not certain
        ("import subprocess\nsubprocess.run(['python', 'other.py'])\n", False, False),
    ],
)
def test_copies_without_torch_are_warned_of_where_that_is_certain(
    tmp_path: Path, text: str, joined: bool, warns: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    job = replace(JOB, script=str(script))
    said = copies_warning(job, Closing(1.0, has_joined=joined))
    assert said == (ran_as_copies(str(script), 2) if warns else "")
    assert copies_warning(replace(job, config=JobConfig(workers=1)), Closing(1.0, has_joined=False)) == ""


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["a", "Traceback (most recent call last):", "  File", "KeyboardInterrupt"], ["a"]),
        (["Traceback (most recent call last):", "KeyboardInterrupt: stop", ""], []),
        (
            ["Traceback (most recent call last):", "ValueError: x"],
            ["Traceback (most recent call last):", "ValueError: x"],
        ),
        (["KeyboardInterrupt"], ["KeyboardInterrupt"]),
        ([], []),
    ],
)
def test_only_the_traceback_of_ctrl_c_is_left_out(lines: list[str], kept: list[str]) -> None:
    assert list(without_interrupt(lines)) == kept
