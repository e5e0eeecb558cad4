"""Checkpoints between real clients, a coordinator's process and a publisher in its thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.events import CheckpointLost, CheckpointPublished, JobEnded
from shoal.membership.client import CoordinatorClient
from shoal.wire.messages import PartFailed, PartWritten
from support.launcher import wait_for_file
from support.membership import broken, join, part
from support.membership_job import PATIENCE, Job, ended

NAME = "step-00000010-g1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "publisher"
    made.mkdir()
    return made


@contextlib.contextmanager
def two_workers(job: Job) -> Iterator[list[CoordinatorClient]]:
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(CoordinatorClient.connect(job.address, job.token, join(number), timeout=PATIENCE))
            for number in range(2)
        ]
        for client in clients:
            client.wait_for_generation(0)
        yield clients


def tell(client: CoordinatorClient, worker: int, *, generation: int = 1, failed: str = "", **fields: object) -> None:
    message = part(worker, step=10, generation=generation, failed=failed, **fields)
    if isinstance(message, PartWritten):
        client.part_written(message)
    else:
        assert isinstance(message, PartFailed)
        client.part_failed(message)


def leave(*clients: CoordinatorClient) -> None:
    for client in clients:
        client.leave(step=10, reason="done")


def test_all_workers_hear_that_their_checkpoint_is_published(tmp_path: Path, folder: Path) -> None:
    with Job(tmp_path / "run", publisher=folder, workers=2) as job, two_workers(job) as clients:
        tell(clients[0], 0, mark="best")
        assert clients[0].wait_settled(NAME, 0.0) is None
        assert clients[0].wait_settled(NAME, 0.05) is None
        tell(clients[1], 1)
        assert [client.wait_settled(NAME, PATIENCE) for client in clients] == [True, True]
        assert clients[0].wait_settled(NAME, 0.0) is True
        leave(*clients)
        assert job.exit_code() == 0
        [published] = [event for event in job.events() if isinstance(event, CheckpointPublished)]
    assert (published.size, published.mark, published.removed) == (42, "best", ("step-00000001-g1",))
    assert published.seconds >= 0.5
    assert (folder / "published").read_text() == f"{NAME} part-0.safetensors part-1.safetensors\n"
    assert not (folder / "discarded").exists()


def test_a_full_disk_at_publication_loses_the_checkpoint_and_its_files(tmp_path: Path, folder: Path) -> None:
    (folder / "full").touch()
    with Job(tmp_path / "run", publisher=folder, workers=2) as job, two_workers(job) as clients:
        for worker, client in enumerate(clients):
            tell(client, worker)
        assert [client.wait_settled(NAME, PATIENCE) for client in clients] == [False, False]
        leave(*clients)
        assert job.exit_code() == 0
        [lost] = [event for event in job.events() if isinstance(event, CheckpointLost)]
    assert (lost.worker, "No space left on device" in lost.reason) == (None, True)
    assert (folder / "discarded").read_text() == f"{NAME}\n"


def test_a_part_that_fails_is_said_at_once_and_nobody_waits_for_ever(tmp_path: Path, folder: Path) -> None:
    with Job(tmp_path / "run", publisher=folder, workers=2) as job, two_workers(job) as clients:
        tell(clients[1], 1, failed="read-only file system")
        tell(clients[0], 0)
        assert [client.wait_settled(NAME, PATIENCE) for client in clients] == [False, False]
        leave(*clients)
        assert job.exit_code() == 0
        [lost] = [event for event in job.events() if isinstance(event, CheckpointLost)]
    assert (lost.worker, lost.reason) == (1, "read-only file system")
    assert not (folder / "asked").exists()


def test_the_end_of_the_job_waits_for_a_slow_publication_and_the_job_goes_on_meanwhile(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "slow").touch()
    with Job(tmp_path / "run", publisher=folder, workers=2) as job:
        watcher = job.watch()
        with two_workers(job) as clients:
            for worker, client in enumerate(clients):
                tell(client, worker)
            wait_for_file(folder / "asked")
            for client in clients:  # the coordinator answers while its publisher is busy
                client.tell(broken(step=11))
            assert clients[0].wait_for_generation(1).number == 2
            leave(*clients)
        wait_for_file(job.run_dir / "events.jsonl", count=7)
        (folder / "slow").unlink()
        assert ended(watcher).exit_code == 0
        assert job.exit_code() == 0
        assert [type(event) for event in job.events()[-2:]] == [CheckpointPublished, JobEnded]


def test_without_a_publisher_checkpoints_are_lost(tmp_path: Path) -> None:
    with Job(tmp_path / "run", workers=2) as job, two_workers(job) as clients:
        for worker, client in enumerate(clients):
            tell(client, worker)
        assert clients[0].wait_settled(NAME, PATIENCE) is False
        leave(*clients)
        assert job.exit_code() == 0
        [lost] = [event for event in job.events() if isinstance(event, CheckpointLost)]
    assert "--checkpoint-every" in lost.reason


def test_generations_of_a_job_that_goes_on_count_on(tmp_path: Path, folder: Path) -> None:
    with Job(tmp_path / "run", publisher=folder, past=4, workers=2) as job, two_workers(job) as clients:
        assert clients[0].wait_for_generation(0).number == 5
        for worker, client in enumerate(clients):
            tell(client, worker, generation=5)
        assert clients[1].wait_settled("step-00000010-g5", PATIENCE) is True
        leave(*clients)
        assert job.exit_code() == 0
