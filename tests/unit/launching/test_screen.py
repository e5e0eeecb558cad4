"""The last words of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.launching.processes.specs import Job
from shoal.launching.screen import SHOWN_LINES, final_message, without_interrupt
from shoal.launching.supervision.orders import FinishJob
from shoal.values import Address

JOB = Job(JobConfig(workers=2), "train.py", (), Path("runs/x"), Path("/tmp/token"), Address("127.0.0.1", 7000))


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
    shown, last = final_message(FinishJob(1, 0.5, "ScriptFailed", text), JOB, ())
    assert shown == f"shoal: error: {text}"
    assert last == f"shoal: {texts.script_raised('ValueError at /x/train.py:12', '1', Path('runs/x'))}"


def test_exit_code_of_a_script_points_to_the_logs() -> None:
    [line] = final_message(FinishJob(1, 0.5, "ScriptFailed", "worker 1 exited with code 4"), JOB, ())
    assert "runs/x/logs" in line


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
