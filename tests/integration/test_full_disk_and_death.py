"""A disk that cannot be written while a process dies: the job stands still with a word, and goes on when there is room.

The run directory is on a small disk of its own, in a mount namespace that ends with the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.job_config import from_toml
from support.launcher import STEPPING, command_of, leftovers, started, wait_for_file, write_script
from support.small_disk import SmallDiskJob, on_small_disk

CANNOT = "decisions.sqlite cannot be written: "
CAN_AGAIN = "decisions.sqlite can be written again"


@contextlib.contextmanager
def stepping_job(folder: Path, *options: str, workers: int = 3) -> Iterator[SmallDiskJob]:
    """Workers that take steps until the file `done` is there; all are in the first generation."""
    write_script(folder, STEPPING, joins=True)
    with on_small_disk(folder, "-n", str(workers), "--run-dir", "disk/run", *options, "script.py") as job:
        wait_for_file(folder / "entered", count=workers)
        yield job


def process_of(folder: Path, worker: int) -> int:
    lines = [line.split() for line in wait_for_file(folder / "started", count=worker + 1)]
    return next(int(process) for number, process in lines if int(number) == worker)


def entered(folder: Path, generation: int, count: int) -> list[str]:
    """The members of a generation as `count` workers saw them that entered it."""
    limit = time.monotonic() + 60
    while True:
        lines = [line.split() for line in (folder / "entered").read_text().splitlines()]
        found = [" ".join(members) for _, number, *members in lines if int(number) == generation]
        if len(found) >= count:
            return found
        assert time.monotonic() < limit, lines
        time.sleep(0.02)


def events(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = (folder / "kept" / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in (json.loads(line)["event"] for line in lines) if event["kind"] in kinds]


def test_a_death_on_a_full_disk_is_said_at_once_and_made_up_for_when_there_is_room(tmp_path: Path) -> None:
    with stepping_job(tmp_path) as job:
        coordinator = job.coordinator.pid
        job.fill()
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        job.wait_for(CANNOT)
        said = next(line for line in job.screen.splitlines() if CANNOT in line)
        assert "disk is full" in said
        assert "0 bytes are free on its disk" in said
        assert "make room on that disk" in said
        assert not [line for line in (tmp_path / "entered").read_text().splitlines() if line.split()[1] != "1"]
        job.free()
        job.wait_for(CAN_AGAIN)
        assert entered(tmp_path, generation=2, count=2)
        job.wait_for("worker 3 is started")
        assert job.coordinator.pid == coordinator
        wait_for_file(tmp_path / "started", count=4)
        (tmp_path / "done").touch()
        assert job.end() == 0, job.screen
    assert [event["worker"] for event in events(tmp_path, "worker-died")] == [1]
    kinds = [event["kind"] for event in events(tmp_path, "storage-failed", "storage-restored", "job-ended")]
    assert kinds[0] == "storage-failed" and "storage-restored" in kinds and kinds[-1] == "job-ended"
    assert leftovers(tmp_path) == []


def test_a_coordinator_that_dies_on_a_full_disk_goes_on_and_says_what_it_waits_for(tmp_path: Path) -> None:
    with stepping_job(tmp_path) as job:
        job.fill()
        os.kill(job.coordinator.pid, signal.SIGKILL)
        job.wait_for("the coordinator is back")
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        job.wait_for(CANNOT)
        os.kill(job.coordinator.pid, signal.SIGKILL)  # also one that waits
        limit = time.monotonic() + 60
        while job.screen.count(CANNOT) < 2:
            assert time.monotonic() < limit, job.screen
            time.sleep(0.02)
        job.free()
        job.wait_for("worker 3 is started")
        assert entered(tmp_path, generation=2, count=2)
        (tmp_path / "done").touch()
        assert job.end() == 0, job.screen
    assert [event["worker"] for event in events(tmp_path, "worker-died")] == [1]
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_ctrl_c_ends_a_job_that_waits_for_a_disk(tmp_path: Path) -> None:
    with stepping_job(tmp_path, "--progress", "none") as job:
        job.fill()
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        job.wait_for(CANNOT)  # also without progress
        job.launcher.send_signal(signal.SIGINT)
        job.wait_for("the coordinator waits for the disk")
        assert job.end() == 130, job.screen
        assert "events.jsonl is incomplete" in job.screen or "decisions.sqlite is incomplete" in job.screen
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_a_job_that_ends_on_a_full_disk_ends_all_the_same(tmp_path: Path) -> None:
    with stepping_job(tmp_path, workers=2) as job:
        job.fill()
        (tmp_path / "done").touch()
        job.wait_for(CANNOT)
        assert job.end() == 0, job.screen
        assert "incomplete" in job.screen
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_whoever_joins_meanwhile_is_told_what_it_waits_for(tmp_path: Path) -> None:
    with stepping_job(tmp_path) as job:
        address = from_toml((job.disk / "run" / "config.toml").read_text(), origin="test").address
        [token] = (tmp_path / "runtime").glob("*/token")
        job.fill()
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        job.wait_for(CANNOT)
        with started(tmp_path, "join", address, "--token-file", str(token)) as joining:
            assert joining.stderr is not None
            line = joining.stderr.readline()
            assert line.startswith("shoal: waiting for a number: ") and CANNOT in line
            job.free()
            assert "this is worker " in joining.stderr.readline()
            (tmp_path / "done").touch()
            joining.communicate(timeout=60)
        assert job.end() == 0, job.screen


@pytest.mark.long
def test_a_coordinator_that_waits_for_a_disk_is_never_taken_for_hung(tmp_path: Path) -> None:
    """A coordinator that owes an answer for 40 s is killed, unless it has said what it waits for."""
    with stepping_job(tmp_path) as job:
        coordinator = job.coordinator.pid
        job.fill()
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        job.wait_for(CANNOT)
        limit = time.monotonic() + 45
        while time.monotonic() < limit:
            assert job.coordinator.pid == coordinator
            time.sleep(0.5)
        job.free()
        job.wait_for("worker 3 is started")
        assert entered(tmp_path, generation=2, count=2)
        assert job.coordinator.pid == coordinator
        (tmp_path / "done").touch()
        assert job.end() == 0, job.screen


@pytest.mark.long
def test_every_sample_counts_once_through_deaths_on_a_full_disk(tmp_path: Path) -> None:
    """A worker and then the coordinator die; the workers that are left train on when there is room."""
    script = Path(__file__).parents[1] / "support" / "counting_script.py"
    settings = ("-n", "3", "--run-dir", "disk/run", "--progress", "plain", "--threads", "1")
    with on_small_disk(tmp_path, *settings, str(script), "--epochs=4", "--gate=70") as job:
        job.wait_for("step ")
        job.fill()
        workers = [child for child in job.launcher.children() if command_of(child)[1:2] == [str(script)]]
        workers[1].kill()
        job.wait_for(CANNOT)
        job.coordinator.kill()
        job.wait_for("the coordinator is back")
        job.free()
        job.wait_for("worker 3 is started")
        (tmp_path / "open").touch()
        assert job.end() == 0, job.screen
    assert json.loads((tmp_path / "result.json").read_text())["off"] < 1e-6
    assert leftovers(tmp_path) == []
