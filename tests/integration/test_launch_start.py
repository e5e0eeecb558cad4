"""`shoal run` when processes die before the first generation: they are replaced, as they would be later."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from shoal.events import AnyEvent, GenerationFormed, JobEnded, WorkerDied
from support.launcher import (
    JOINING,
    PATIENCE,
    STEPPING,
    command_of,
    events_in,
    leftovers,
    processes_in,
    shoal,
    started,
    write_script,
)

E = TypeVar("E", bound=AnyEvent)

# Before anything else each process notes that it was started, and does what a file for its number says.
FIRST = """
import os, time
number = os.environ["SHOAL_WORKER"]
with open("begun", "a") as file:
    print(number, file=file)
while os.path.exists(f"hold-{number}"):
    time.sleep(0.02)
if os.path.exists(f"kill-{number}"):
    os.kill(os.getpid(), 9)
"""


class Starting:
    """A job whose processes come to harm at its start, looked at from outside."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    def begun(self, count: int) -> None:
        """Wait until so many processes were started."""
        limit = time.monotonic() + PATIENCE
        while len(lines(self.folder)) < count:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < limit, lines(self.folder)
            time.sleep(0.02)

    def release(self, *numbers: int) -> None:
        for number in numbers:
            (self.folder / f"hold-{number}").unlink()

    def end(self, code: int = 0) -> str:
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == code, out + err
        assert leftovers(self.folder) == []
        return err

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in events_in(self.folder / "out") if isinstance(event, kind)]

    @property
    def first_members(self) -> tuple[int, ...]:
        return self.of(GenerationFormed)[0].workers

    def coordinator(self) -> psutil.Process:
        return next(process for process in processes_in(self.folder) if "coordinator" in command_of(process))


def lines(folder: Path) -> list[str]:
    return (folder / "begun").read_text().split() if (folder / "begun").exists() else []


def write(folder: Path, *, kill: tuple[int, ...] = (), hold: tuple[int, ...] = (), joining: str = JOINING) -> None:
    """A script whose workers take no step: being in a generation is all."""
    (folder / "done").touch()
    (folder / "script.py").write_text(FIRST + joining + STEPPING)
    for what, numbers in (("kill", kill), ("hold", hold)):
        for number in numbers:
            (folder / f"{what}-{number}").touch()


def run(workers: str, *options: str) -> tuple[str, ...]:
    return ("run", "-n", workers, "--run-dir", "out", *options, "script.py")


def test_a_worker_killed_before_anybody_joined_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, kill=(1,), hold=(0, 2, 3, 4))
    with started(tmp_path, *run("4")) as process:
        job = Starting(tmp_path, process)
        job.begun(5)  # the fifth is the replacement
        job.release(0, 2, 3, 4)
        job.end()
    assert [event.worker for event in job.of(WorkerDied)] == [1]
    assert job.first_members == (0, 2, 3, 4)


def test_one_blow_to_several_processes_counts_as_one_failure_also_when_it_hits_replacements(tmp_path: Path) -> None:
    """Worker 0 waits for the others all the time; with `--max-failures 3` a third blow would end the job."""
    write(tmp_path, kill=(1, 2, 3, 4, 5, 6), hold=(1, 2, 3, 4, 5, 6, 7, 8, 9))
    with started(tmp_path, *run("4")) as process:
        job = Starting(tmp_path, process)
        for blow in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
            job.begun(blow[-1] + 1)
            job.release(*blow)
        job.end()
    assert sorted(event.worker for event in job.of(WorkerDied)) == [1, 2, 3, 4, 5, 6]
    assert job.first_members == (0, 7, 8, 9)


@pytest.mark.long
def test_all_killed_before_anybody_joined_are_replaced(tmp_path: Path) -> None:
    write(tmp_path, kill=(0, 1, 2, 3), hold=(0, 1, 2, 3))
    with started(tmp_path, *run("4")) as process:
        job = Starting(tmp_path, process)
        job.begun(4)
        job.release(0, 1, 2, 3)
        job.end()
    assert job.first_members == (4, 5, 6, 7)


@pytest.mark.long
@pytest.mark.parametrize(("workers", "members"), [("4", (0, 2, 3, 4)), ("2:4", (0, 2, 3))])
def test_a_worker_killed_between_joining_and_the_first_generation_is_replaced(
    tmp_path: Path, workers: str, members: tuple[int, ...]
) -> None:
    """With a minimum, those who are there do not wait for long."""
    deadly = JOINING.replace(
        "generation = enter(", "if me.worker == 1:\n    os.kill(os.getpid(), 9)\ngeneration = enter("
    )
    write(tmp_path, hold=(0, 2, 3, 4), joining=deadly)
    with started(tmp_path, *run(workers)) as process:
        job = Starting(tmp_path, process)
        job.begun(5)
        job.release(*members)
        while members == (0, 2, 3) and not job.of(GenerationFormed):
            assert process.poll() is None
            time.sleep(0.02)
        job.release(*({0, 2, 3, 4} - set(members)))
        job.end()
    assert job.first_members == members


@pytest.mark.long
def test_the_coordinator_and_a_worker_killed_before_anybody_joined(tmp_path: Path) -> None:
    write(tmp_path, kill=(1,), hold=(0, 1, 2))
    with started(tmp_path, *run("2")) as process:
        job = Starting(tmp_path, process)
        job.begun(2)
        job.coordinator().kill()
        job.release(1)
        job.begun(3)
        job.coordinator().kill()  # and once more, while the number of the third is all that was decided
        job.release(0, 2)
        job.end()
    assert job.first_members == (0, 2)


def test_a_script_that_cannot_be_imported_is_not_started_again(tmp_path: Path) -> None:
    script = write_script(tmp_path, "", joins=True)
    script.write_text(FIRST + "import shoal, no_such_module\n" + script.read_text())
    outcome = shoal(tmp_path, *run("1"))
    assert outcome.code == 1
    assert "No module named 'no_such_module'" in outcome.stdout + outcome.stderr
    assert lines(tmp_path) == ["0"]


@pytest.mark.long
def test_a_script_that_kills_itself_at_its_start_ends_the_job_after_so_many_rounds(tmp_path: Path) -> None:
    write(tmp_path, kill=tuple(range(20)))
    with started(tmp_path, *run("2", "--max-failures", "2")) as process:
        job = Starting(tmp_path, process)
        error = job.end(3)
    assert "was killed by SIGKILL before it joined the job" in error
    assert "2 rounds of processes in a row ended before they were in a generation" in error
    assert 3 <= len(lines(tmp_path)) <= 4
    assert job.of(JobEnded)[-1].exit_code == 3


def test_a_plain_script_that_is_killed_is_not_started_again(tmp_path: Path) -> None:
    """Others of its job may be in the middle of something with it; nobody could tell them."""
    (tmp_path / "script.py").write_text(FIRST + "time.sleep(1000)\n")
    (tmp_path / "kill-1").touch()
    outcome = shoal(tmp_path, *run("2"))
    assert outcome.code == 3
    assert "worker 1 was killed by SIGKILL before it joined the job" in outcome.stderr
    assert sorted(lines(tmp_path)) == ["0", "1"]
