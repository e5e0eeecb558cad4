"""`shoal run --resume`, the lock of a run directory, the last checkpoint of a stop, the report at the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shoal.events import CheckpointLost, CheckpointPublished, GenerationFormed, JobEnded, JobStarted
from shoal.launching import texts
from support.launcher import (
    PATIENCE,
    events_in,
    leftovers,
    processes_in,
    shoal,
    started,
    wait_for_file,
    wait_for_line,
    write_script,
)

# Saves at the step that its first argument says, and leaves.
ONCE = "step = int(sys.argv[1])\nprint(sys.argv[1:], config.resume)\nsave(step)\nleave(step)\n"
UNTIL_STOPPED = """
save(10)
open("started", "a").write("x\\n")
while client.stop_reason is None:
    time.sleep(0.02)
if me.worker == 0:
    client.report(events.StopAgreed(step=11, reason=client.stop_reason))
save(11, is_last=True)
leave(11, client.stop_reason)
"""


def names(run_dir: Path) -> list[str]:
    return sorted(path.parent.name for path in run_dir.glob("checkpoints/*/manifest.json"))


def test_resumed_job_has_its_script_arguments_and_settings_again_and_counts_on(tmp_path: Path) -> None:
    write_script(tmp_path, ONCE, saves=True)
    run_dir = tmp_path / "out"
    first = shoal(tmp_path, "run", "-n", "2", "--seed", "5", "--run-dir", "out", "script.py", "10", "--lr", "1")
    assert first.code == 0, first.stderr
    (run_dir / "checkpoints/step-00000099-g7").mkdir()  # what a crash has left of one
    (run_dir / "checkpoints/step-00000099-g7/part-0-of-1.safetensors").write_bytes(b"torn")
    second = shoal(tmp_path, "run", "--resume", "out", "--seed", "6")
    assert second.code == 0, second.stderr
    assert second.stdout.count("['10', '--lr', '1'] out") == 2
    happened = events_in(run_dir)
    assert [event.seed for event in happened if isinstance(event, JobStarted)] == [5, 6]
    assert [event.generation for event in happened if isinstance(event, GenerationFormed)] == [1, 8]
    published = [event.checkpoint for event in happened if isinstance(event, CheckpointPublished)]
    assert published == ["step-00000010-g1", "step-00000010-g8"] == names(run_dir)
    assert not (run_dir / "checkpoints/step-00000099-g7").exists()
    assert sum(isinstance(event, JobEnded) for event in happened) == 2
    saved = tomllib.loads((run_dir / "config.toml").read_text())
    assert (saved["workers"], saved["seed"], saved["run-dir"], saved["resume"]) == (2, 6, "out", "out")
    log = (run_dir / "logs/worker-1.log").read_text()
    assert log == "['10', '--lr', '1'] \n['10', '--lr', '1'] out\n"


@pytest.mark.long
def test_resumed_job_may_have_another_script_and_number_of_workers(tmp_path: Path) -> None:
    write_script(tmp_path, ONCE, saves=True)
    assert shoal(tmp_path, "run", "--run-dir", "out", "script.py", "10").code == 0
    write_script(tmp_path, "print('other', sys.argv[1:])\nleave(10)\n", joins=True, name="other.py")
    outcome = shoal(tmp_path, "run", "--resume", "out", "-n", "2", "other.py", "--resume", "x")
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.count("other ['--resume', 'x']") == 2
    last = [event for event in events_in(tmp_path / "out") if isinstance(event, JobStarted)][-1]
    assert (last.script, last.arguments, last.workers) == ("other.py", ("--resume", "x"), 2)


@pytest.mark.long
def test_launch_from_python_goes_on_with_the_recorded_script(tmp_path: Path) -> None:
    write_script(tmp_path, ONCE, saves=True)
    assert shoal(tmp_path, "run", "--run-dir", "out", "script.py", "10").code == 0
    call = "import shoal; print(shoal.launch('', resume='out', workers=2).exit_code)"
    done = subprocess.run([sys.executable, "-c", call], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.count("['10'] out") == 2
    assert done.stdout.splitlines()[-1] == "0"


def test_a_job_without_a_checkpoint_is_not_resumed_and_left_as_it_was(tmp_path: Path) -> None:
    write_script(tmp_path, "pass")
    assert shoal(tmp_path, "run", "--run-dir", "out", "script.py").code == 0
    before = (tmp_path / "out/config.toml").read_text(), (tmp_path / "out/events.jsonl").read_text()
    outcome = shoal(tmp_path, "run", "--resume", "out", "--seed", "9")
    assert outcome.code == 9
    [line] = outcome.stderr.splitlines()
    assert texts.no_checkpoint("out/checkpoints") in line
    assert before == ((tmp_path / "out/config.toml").read_text(), (tmp_path / "out/events.jsonl").read_text())


def test_a_running_job_is_not_resumed_and_a_killed_one_is(tmp_path: Path) -> None:
    write_script(tmp_path, UNTIL_STOPPED, saves=True)
    with started(tmp_path, "run", "--run-dir", "out", "script.py") as process:
        wait_for_file(tmp_path / "started")
        outcome = subprocess.run(
            [sys.executable, "-m", "shoal", "run", "--resume", "out"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 2
        assert "the job in out is still running" in outcome.stderr
        process.kill()  # the coordinator lives a moment longer, and holds the lock
        write_script(tmp_path, "leave(10)\n", joins=True)
        assert shoal(tmp_path, "run", "--resume", "out").code == 0


@pytest.mark.long
def test_a_run_directory_is_free_when_everything_was_killed(tmp_path: Path) -> None:
    write_script(tmp_path, UNTIL_STOPPED, saves=True)
    with started(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py") as process:
        wait_for_file(tmp_path / "started", count=2)
        for one in processes_in(tmp_path):
            one.kill()
        process.communicate(timeout=PATIENCE)
    (tmp_path / "runtime").rename(tmp_path / "gone")  # its guardian was killed too
    assert names(tmp_path / "out") == ["step-00000010-g1"]
    write_script(tmp_path, "leave(10)\n", joins=True)
    assert shoal(tmp_path, "run", "--resume", "out").code == 0


@pytest.mark.long
def test_coordinator_by_hand_holds_the_run_directory(tmp_path: Path) -> None:
    with started(tmp_path, "coordinator", "--run-dir", "out") as process:
        assert process.stdout is not None
        assert "listening" in process.stdout.readline()
        wait_for_file(tmp_path / "out/events.jsonl")
        outcome = subprocess.run(
            [sys.executable, "-m", "shoal", "coordinator", "--run-dir", "out"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 2
        assert "the job in out is still running" in outcome.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_a_stop_waits_for_the_last_checkpoint(tmp_path: Path, number: signal.Signals, code: int) -> None:
    write_script(tmp_path, UNTIL_STOPPED, saves=True)
    with started(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py") as process:
        wait_for_file(tmp_path / "started", count=2)
        wait_for_line(process, "checkpoint at step 10")  # the launcher knows that they have joined
        (tmp_path / "wait").touch()
        process.send_signal(number)
        wait_for_line(process, texts.LAST_CHECKPOINT)
        (tmp_path / "wait").unlink()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert names(tmp_path / "out") == ["step-00000010-g1", "step-00000011-g1"]
    assert leftovers(tmp_path) == []


def test_second_ctrl_c_does_not_wait_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    write_script(tmp_path, UNTIL_STOPPED, saves=True)
    with started(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py") as process:
        wait_for_file(tmp_path / "started", count=2)
        wait_for_line(process, "checkpoint at step 10")  # the launcher knows that they have joined
        (tmp_path / "wait").touch()
        process.send_signal(signal.SIGINT)
        wait_for_line(process, texts.LAST_CHECKPOINT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert leftovers(tmp_path) == []
    assert names(tmp_path / "out") == ["step-00000010-g1"]
    (tmp_path / "wait").unlink()
    write_script(tmp_path, ONCE, saves=True)
    assert shoal(tmp_path, "run", "--resume", "out", "script.py", "12").code == 0
    assert names(tmp_path / "out") == ["step-00000010-g1", "step-00000012-g2"]


@pytest.mark.long
def test_a_place_that_cannot_be_written_costs_the_checkpoint_not_the_job(tmp_path: Path) -> None:
    write_script(tmp_path, "print('published', save(10))\nleave(10)\n", saves=True)
    (tmp_path / "file").write_text("not a folder")
    outcome = shoal(tmp_path, "run", "--checkpoint-to", "file", "script.py")
    assert outcome.code == 0, outcome.stderr
    assert "published False" in outcome.stdout
    [run_dir] = (tmp_path / "runs").iterdir()
    [lost] = [event for event in events_in(run_dir) if isinstance(event, CheckpointLost)]
    assert lost.worker == 0
    assert lost.reason


@pytest.mark.long
def test_checkpoints_of_another_job_are_not_mixed_with(tmp_path: Path) -> None:
    write_script(tmp_path, ONCE, saves=True)
    there = ("--checkpoint-to", str(tmp_path / "there"), "--run-dir", "out")
    assert shoal(tmp_path, "run", *there, "script.py", "10").code == 0
    assert (tmp_path / "there/out/step-00000010-g1/manifest.json").exists()
    (tmp_path / "out").rename(tmp_path / "moved")
    outcome = shoal(tmp_path, "run", *there, "script.py", "10")
    assert outcome.code == 7
    assert texts.anothers_checkpoints(str(tmp_path / "there/out")) in outcome.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "moved").rename(tmp_path / "out")
    assert shoal(tmp_path, "run", "--resume", "out").code == 0


# The report


def test_every_job_leaves_a_report_and_may_open_it(tmp_path: Path) -> None:
    write_script(tmp_path, "report(1, loss=0.5)\nleave(1)\n", joins=True)
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o755)
    outcome = shoal(tmp_path, "run", "--run-dir", "out", "--open", "script.py", variables={"BROWSER": f"{browser} %s"})
    assert (outcome.code, outcome.stderr) == (0, "")
    assert (tmp_path / "opened").read_text() == (tmp_path / "out/report.html").as_uri() + "\n"


def test_a_report_that_cannot_be_made_does_not_fail_the_job(tmp_path: Path) -> None:
    write_script(tmp_path, "import pathlib\npathlib.Path('out/report.html/x').mkdir(parents=True)\n")
    outcome = shoal(tmp_path, "run", "--run-dir", "out", "--open", "script.py", variables={"BROWSER": "false %s"})
    assert outcome.code == 0
    [line] = outcome.stderr.splitlines()
    assert line.startswith("shoal: the report out/report.html could not be made: ")


def test_a_failed_job_has_a_report_too(tmp_path: Path) -> None:
    write_script(tmp_path, "sys.exit(4)")
    assert shoal(tmp_path, "run", "--run-dir", "out", "script.py").code == 1
    assert (tmp_path / "out/report.html").exists()
