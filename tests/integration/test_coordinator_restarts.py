"""The coordinator's process is killed and started again on the same run directory and socket; the job goes on."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.events import (
    CheckpointPublished,
    CoordinatorReturned,
    GenerationFormed,
    JobEnded,
    JobStarted,
    WorkerReturned,
)
from shoal.membership.client import CoordinatorClient
from shoal.membership.record.decision_file import FILE_NAME
from shoal.wire.messages import ExchangeBroken, PartWritten
from support.membership import join, part
from support.membership_job import PATIENCE, Job, ended, seen


@contextlib.contextmanager
def clients(job: Job, count: int) -> Iterator[list[CoordinatorClient]]:
    with contextlib.ExitStack() as stack:
        joined = [
            stack.enter_context(CoordinatorClient.connect(job.address, job.token, join(number), timeout=PATIENCE))
            for number in range(count)
        ]
        for client in joined:
            client.wait_for_generation(0)
        yield joined


def broken(generation: int) -> ExchangeBroken:
    """Step by step: generations that get nowhere would end the job."""
    return ExchangeBroken(
        generation=generation, step=generation, operation="all-reduce", peer=None, reason="test", holds=generation
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_workers_stay_in_their_generation_while_the_coordinator_is_replaced(run_dir: Path) -> None:
    with Job(run_dir, workers=2) as job, clients(job, 2) as workers:
        job.restart_coordinator()
        watcher = job.watch()
        seen(watcher, CoordinatorReturned)
        assert {seen(watcher, WorkerReturned).worker for _ in range(2)} == {0, 1}
        assert [client.interruption(1) for client in workers] == [None, None]
        for client in workers:
            client.tell(broken(1))
        assert [client.wait_for_generation(1).number for client in workers] == [2, 2]
        for client in workers:
            client.leave(step=3, reason="the script is done")
        assert ended(watcher).exit_code == 0
        assert job.exit_code() == 0
        kinds = [type(event) for event in job.events()]
    assert kinds.count(JobStarted) == 1, "the record goes on; it does not begin again"
    assert kinds.count(JobEnded) == 1


def test_what_a_worker_says_while_there_is_no_coordinator_is_heard_by_the_next(run_dir: Path) -> None:
    with Job(run_dir, workers=2) as job, clients(job, 2) as workers:
        job.kill_coordinator()
        for client in workers:
            client.tell(broken(1))
        job.coordinator = job._start_coordinator()
        assert [client.wait_for_generation(1).number for client in workers] == [2, 2]


def test_kills_at_any_moment_never_make_two_generations_of_one_number(run_dir: Path) -> None:
    """Between decisions and during them: workers and the file agree on every generation that anybody heard of."""
    moments = random.Random(4)
    with Job(run_dir, workers=2) as job, clients(job, 2) as workers:
        heard = {1: {client.wait_for_generation(0) for client in workers}}
        for number in range(1, 9):
            for client in workers:
                client.tell(broken(number))
            time.sleep(moments.uniform(0.0, 0.02))
            job.restart_coordinator()
            heard[number + 1] = {client.wait_for_generation(number) for client in workers}
        for client in workers:
            client.leave(step=99, reason="the script is done")
        assert job.exit_code() == 0
        formed = [event.generation for event in job.events() if isinstance(event, GenerationFormed)]
    for number, generations in heard.items():
        assert len(generations) == 1, f"two workers were told different things of generation {number}"
        assert next(iter(generations)).number == number
    assert len(formed) == len(set(formed))
    with contextlib.closing(sqlite3.connect(run_dir / FILE_NAME)) as database:
        (decided,) = database.execute(
            "SELECT count(*) FROM decisions WHERE decision LIKE '%generation-decided%'"
        ).fetchone()
    assert decided == 9


def test_a_checkpoint_whose_parts_were_written_before_a_kill_is_published_after_it(
    run_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "publisher"
    folder.mkdir()
    with Job(run_dir, publisher=folder, workers=2) as job, clients(job, 2) as workers:
        first = part(0, step=10)
        assert isinstance(first, PartWritten)
        workers[0].part_written(first)
        job.restart_coordinator()
        second = part(1, step=10)
        assert isinstance(second, PartWritten)
        workers[1].part_written(second)
        assert [client.wait_settled("step-00000010-g1", PATIENCE) for client in workers] == [True, True]
        job.restart_coordinator()
        workers[0].part_written(first)  # said again: it is settled already
        for client in workers:
            client.leave(step=10, reason="the script is done")
        assert job.exit_code() == 0
        assert len([event for event in job.events() if isinstance(event, CheckpointPublished)]) == 1


def test_a_coordinator_that_is_started_after_the_end_says_how_it_ended(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        with clients(job, 1) as (worker,):
            worker.leave(step=3, reason="the script is done")
        assert job.exit_code() == 0
        job.restart_coordinator()
        watcher = job.watch()
        assert ended(watcher).text == "the only worker finished"
        assert job.exit_code() == 0
        assert [type(event) for event in job.events()].count(JobEnded) == 1


def test_while_decisions_cannot_be_written_nobody_hears_of_them_and_nothing_is_lost(run_dir: Path) -> None:
    """As on a full disk; here somebody has locked the file."""
    with Job(run_dir, workers=2) as job, clients(job, 2) as workers:
        with contextlib.closing(sqlite3.connect(run_dir / FILE_NAME)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for client in workers:
                client.tell(broken(1))
            assert job.coordinator.stderr is not None
            assert "the coordinator can decide nothing until then" in job.coordinator.stderr.readline()
            assert [client.interruption(1) for client in workers] == [None, None]
            other.rollback()
        assert [client.wait_for_generation(1).number for client in workers] == [2, 2]
        assert "can be written again" in job.coordinator.stderr.readline()
        for client in workers:
            client.leave(step=3, reason="the script is done")
        assert job.exit_code() == 0
