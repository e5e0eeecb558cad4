"""`python train.py` as a job: what it saves, marks, resumes and reports, and that it writes nothing unasked."""

from __future__ import annotations

import collections
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.disk import texts as disk_texts
from shoal.entry import texts
from shoal.events import CheckpointPublished, GenerationFormed, JobEnded, JobStarted, Resumed, WorkerFailed
from support.launcher import PATIENCE, Outcome, events_in, outcome_of, shoal

# 16 steps of 4 samples alone; every sample has its number in it.
SCRIPT = """
import os, sys, time
import torch
import shoal

torch.set_num_threads(1)
DATA = [(torch.tensor([float(number), 1.0]), torch.tensor([float(number % 7)])) for number in range(64)]

def train(run):
    torch.manual_seed(1)
    model = run.model(torch.nn.Linear(2, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9))
    for x, y in run.batches(DATA, batch_size=4, epochs=1):
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.applied:
            print("used", *(int(number) for number in x[:, 0]), flush=True)
        run.log(mean=float(x.mean()))
        INSIDE
    if run.is_first:
        print("weights", *(value.hex() for parameter in model.parameters() for value in parameter.flatten().tolist()))

if __name__ == "__main__":
    shoal.main(train, OPTIONS)
"""
STOPS_AFTER_11 = 'if "stop" in sys.argv and run.step >= 9:\n            run.stop("enough for a test")'


def write(folder: Path, *, inside: str = "pass", options: str = "") -> None:
    (folder / "train.py").write_text(SCRIPT.replace("INSIDE", inside).replace("OPTIONS", options), encoding="utf-8")


def python(folder: Path, *arguments: str) -> Outcome:
    command = [sys.executable, "train.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    return outcome_of(done.returncode, done.stdout, done.stderr)


def weights(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    [line] = [line for line in outcome.stdout.splitlines() if "weights" in line]
    return line.partition("weights ")[2]


def used(*outcomes: Outcome) -> collections.Counter[int]:
    lines = [line for outcome in outcomes for line in outcome.stdout.splitlines()]
    return collections.Counter(
        int(number) for line in lines if "used " in line for number in line.partition("used ")[2].split()
    )


def test_the_last_line_of_a_recorded_script_names_the_next_command(tmp_path: Path) -> None:
    write(tmp_path, options='run_dir="out"')
    assert re.fullmatch(
        r"shoal: finished in \S+ \S+, 16 steps; look at it: shoal report --open out\n",
        python(tmp_path).frame[-1] + "\n",
    )
    write(tmp_path, inside='assert run.step < 5, "no more"', options='run_dir="again", checkpoint_every=2')
    command = [sys.executable, "train.py"]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert failed.returncode == 1
    *_, error, last = failed.stderr.splitlines()
    assert error == "AssertionError: no more"
    assert re.fullmatch(
        r"shoal: failed: the script raised AssertionError at train.py:20, after .*; look at again/logs/worker-0.log"
        r"; go on from the last checkpoint: shoal run --resume again",
        last,
    )
    assert (tmp_path / "again" / "logs" / "worker-0.log").read_text().count("AssertionError: no more") == 1
    write(tmp_path, inside="run.model(model)", options='run_dir="mistaken"')
    mistaken = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert mistaken.returncode == 2
    *_, error, last = mistaken.stderr.splitlines()
    assert error.startswith("shoal: error: run.model was called inside a loop")
    assert re.fullmatch(r"shoal: failed, after .*; look at mistaken", last)


def test_without_a_request_nothing_is_written_and_the_first_save_makes_a_whole_run(tmp_path: Path) -> None:
    write(tmp_path)
    plain = python(tmp_path)
    assert plain.code == 0 and "finished: 16 steps" in plain.stdout, plain.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]

    write(tmp_path, inside='if run.step in (4, 9):\n            run.save(mark="best")')
    saving = python(tmp_path)
    assert weights(saving) == weights(plain)
    [run_dir] = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-train", run_dir.name)
    name = f"runs/{run_dir.name}"
    assert texts.checkpoint_went(5, name, f"shoal run --resume {name}") in saving.stdout
    assert f"the record is in {name}" in saving.stdout
    assert {path.name for path in run_dir.iterdir()} == {
        *("config.toml", "events.jsonl", "metrics.jsonl", "checkpoints", "logs", "lock", "report.html")
    }
    happened = events_in(run_dir)
    assert isinstance(happened[0], JobStarted) and happened[0].script == "train.py" and happened[0].workers == 1
    assert isinstance(happened[-1], JobEnded) and happened[-1].outcome == "finished"
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 16  # those before the first save too
    published = [(event.step, event.mark) for event in happened if isinstance(event, CheckpointPublished)]
    assert published == [(5, "best"), (10, "best"), (16, "")]

    listed = shoal(tmp_path, "checkpoints", "last").stdout.splitlines()
    assert [("best" in line, re.findall(r"step-0*(\d+)-g1", line)) for line in listed[1:]] == [
        *((False, ["16"]), (True, ["10"]), (False, ["5"]))
    ]
    shown = shoal(tmp_path, "show", "last").stdout
    assert re.findall(r"step-0*(\d+)-g1 +published, marked best", shown) == ["10"]
    report = (run_dir / "report.html").read_text()
    assert re.findall(r"step-0*(\d+)-g1</code></th><td>published, marked best", report) == ["10"]
    assert "train" in shoal(tmp_path, "runs").stdout
    exported = shoal(tmp_path, "export", "last", "--checkpoint", "best")
    assert exported.code == 0, exported.stderr


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, str]:
    """A folder whose runs/first stopped after 11 of 16 steps, its output, and the weights of a run that did not."""
    folder = tmp_path_factory.mktemp("stopped")
    write(folder)
    whole = weights(python(folder))
    write(folder, inside=STOPS_AFTER_11, options='run_dir="runs/first", resume="last", checkpoint_every=4')
    first = python(folder, "stop")
    assert first.code == 0, first.stderr
    assert texts.nothing_to_resume("runs/first") in first.stdout
    assert "stopped (enough for a test): 11 steps" in first.stdout
    happened = events_in(folder / "runs/first")
    steps = [event.step for event in happened if isinstance(event, CheckpointPublished)]
    assert (steps[0], steps[-1]) == (4, 11)  # one between may be put off
    return folder, first, whole


def copy_of(stopped: tuple[Path, Outcome, str], folder: Path) -> None:
    shutil.copytree(stopped[0] / "runs", folder / "runs")
    shutil.copy(stopped[0] / "train.py", folder / "train.py")


@pytest.mark.timeout(300)  # with the two runs of the fixture
def test_a_script_goes_on_alone_bit_for_bit(tmp_path: Path, stopped: tuple[Path, Outcome, str]) -> None:
    copy_of(stopped, tmp_path)
    alone = python(tmp_path)
    assert weights(alone) == stopped[2]
    happened = events_in(tmp_path / "runs/first")
    assert [event.step for event in happened if isinstance(event, Resumed)] == [11]
    assert [event.generation for event in happened if isinstance(event, GenerationFormed)] == [1, 2]
    assert used(stopped[1], alone) == dict.fromkeys(range(64), 1)


@pytest.mark.long
def test_shoal_run_goes_on_with_one_worker_bit_for_bit(tmp_path: Path, stopped: tuple[Path, Outcome, str]) -> None:
    copy_of(stopped, tmp_path)
    job = shoal(tmp_path, "run", "--resume", "first", "train.py", patience=2 * PATIENCE)
    assert weights(job) == stopped[2]
    assert used(stopped[1], job) == dict.fromkeys(range(64), 1)


@pytest.mark.long
def test_shoal_run_goes_on_with_more_workers_and_every_sample_once(
    tmp_path: Path, stopped: tuple[Path, Outcome, str]
) -> None:
    copy_of(stopped, tmp_path)
    job = shoal(tmp_path, "run", "--resume", "first", "-n", "2", "train.py", patience=2 * PATIENCE)
    assert job.code == 0, job.stderr
    assert used(stopped[1], job) == dict.fromkeys(range(64), 1)


@pytest.mark.long
def test_a_job_of_several_workers_goes_on_alone(tmp_path: Path) -> None:
    write(tmp_path, inside='if "stop" in sys.argv and run.step >= 4:\n            run.stop("enough for a test")')
    command = ("run", "-n", "2", "--spares", "1", "--run-dir", "runs/x", "train.py", "stop")
    first = shoal(tmp_path, *command, patience=2 * PATIENCE)
    assert first.code == 0, first.stderr
    write(tmp_path, options='resume="last"')
    alone = python(tmp_path)
    assert alone.code == 0, alone.stderr
    assert used(first, alone) == dict.fromkeys(range(64), 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "interrupted by Ctrl-C"),
        (signal.SIGTERM, 143, "stopped by SIGTERM"),
    ],
)
def test_a_signal_saves_and_ends_with_the_exit_code_of_a_job(
    tmp_path: Path, number: signal.Signals, code: int, words: str
) -> None:
    write(tmp_path, inside='time.sleep(0.1) if "fast" not in sys.argv else None', options='run_dir="out"')
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while "used" not in (line := process.stdout.readline()):
        assert line
    os.kill(process.pid, number)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, stderr
    assert stderr.splitlines()[-1] == f"shoal: {words}; the record is in out; `shoal run --resume out` goes on"
    happened = events_in(tmp_path / "out")
    ended = happened[-1]
    assert isinstance(ended, JobEnded) and (ended.outcome, ended.exit_code) == ("interrupted", code)
    write(tmp_path, options='resume="out"')
    rest = python(tmp_path)
    assert rest.code == 0, rest.stderr
    before = outcome_of(code, line + stdout, "")
    assert used(before, rest) == dict.fromkeys(range(64), 1)


def test_what_a_script_raises_is_in_the_record(tmp_path: Path) -> None:
    write(tmp_path, inside='if run.step == 2:\n            raise ValueError("no more")', options='run_dir="out"')
    failed = python(tmp_path)
    assert failed.code == 1 and failed.stderr.splitlines()[-1] == "ValueError: no more"
    happened = events_in(tmp_path / "out")
    [told] = [event for event in happened if isinstance(event, WorkerFailed)]
    assert "ValueError: no more" in told.text
    assert isinstance(happened[-1], JobEnded) and re.fullmatch(
        r"the script raised ValueError at train\.py:\d+", happened[-1].reason
    )
    assert "ValueError: no more" in (tmp_path / "out/logs/worker-0.log").read_text()
    again = python(tmp_path)
    assert again.code == 7
    taken = disk_texts.run_directory_taken(Path("out"), has_job=True)
    assert again.stderr == f"shoal: error: {taken}\n"


def test_an_exception_on_one_worker_is_in_its_log_and_in_the_last_line(tmp_path: Path) -> None:
    write(tmp_path, inside='if run.rank == 1 and run.step == 2:\n            raise ValueError("no more")')
    failed = shoal(tmp_path, "run", "-n", "2", "--max-failures", "1", "--run-dir", "out", "train.py")
    assert failed.code == 1, failed.stderr
    log = (tmp_path / "out/logs/worker-1.log").read_text()
    assert log.rstrip().endswith("ValueError: no more") and 'train.py", line' in log
    assert "Traceback" not in (tmp_path / "out/logs/worker-0.log").read_text()
    last = failed.frame[-1]
    assert re.match(r"shoal: failed: the script raised ValueError at train\.py:\d+ on worker 1 in step \d+, ", last)
    assert "out/logs/worker-1.log" in last


@pytest.mark.long
def test_settings_of_the_script_are_defaults_under_shoal_run(tmp_path: Path) -> None:
    write(tmp_path, options='checkpoint_every=4, seed=3, run_dir="elsewhere"')
    job = shoal(tmp_path, "run", "-n", "2", "--seed", "0", "--run-dir", "out", "train.py", patience=2 * PATIENCE)
    assert job.code == 0, job.stderr
    assert texts.taken_over({"checkpoint-every": "4"}) in job.stdout
    assert not (tmp_path / "elsewhere").exists()
    steps = [event.step for event in events_in(tmp_path / "out") if isinstance(event, CheckpointPublished)]
    assert (steps[0], steps[-1]) == (4, 8)
