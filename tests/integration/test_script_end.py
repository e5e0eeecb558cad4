"""Jobs whose workers die at their start and behind their last loop: exit code 0 means that everything was run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from shoal import events
from support.launcher import events_in, leftovers, started

SCRIPT = Path(__file__).parents[1] / "support" / "ending_script.py"
PATIENCE = 180.0
SAMPLES, EPOCHS = 40, 2


E = TypeVar("E", bound=events.AnyEvent)


class Job:
    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in events_in(self.folder / "run") if isinstance(event, kind)]

    def wait_until_at(self, place: str, worker: int) -> None:
        limit = time.monotonic() + PATIENCE
        while f"{place} {worker}" not in self.ran():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < limit, self.ran()
            time.sleep(0.02)

    def ran(self) -> list[str]:
        """Places that workers have come to, in order."""
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def end(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=PATIENCE)
        assert leftovers(self.folder) == []
        return self.process.returncode, out + err

    def end_well(self) -> None:
        code, said = self.end()
        assert code == 0, said
        assert is_whole(self.folder), self.ran()


@contextmanager
def job(folder: Path, *options: str) -> Iterator[Job]:
    settings = ("--run-dir", "run", "--progress", "plain", "--threads", "1", *options)
    with started(folder, "run", *settings, str(SCRIPT)) as process:
        yield Job(folder, process)


def told(folder: Path, *what: str) -> None:
    for each in what:
        (folder / each).touch()


def is_whole(folder: Path) -> bool:
    """Whether everything was written that the script writes, and each sample was used as often as it should be."""
    try:
        result = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        return False
    assert result["uses"] == [EPOCHS] * SAMPLES, result
    assert result["rate"] == [0.5**EPOCHS]
    assert [(folder / f"epoch-{epoch}").read_text() for epoch in range(EPOCHS)] == ["1.000", "2.000"]
    return (folder / "score").exists() and (folder / "score").read_text() == f"{EPOCHS:.3f}"


@pytest.mark.parametrize(
    "options",
    [("--checkpoint-every", "never"), pytest.param((), marks=pytest.mark.long)],
    ids=["no checkpoint", "a last checkpoint"],
)
@pytest.mark.long
def test_a_first_worker_killed_while_it_writes_behind_the_loop(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Another one writes the file, from the same state; no step is taken again."""
    told(tmp_path, "kill-writing-0")
    with job(tmp_path, "-n", "2", *options) as run:
        run.end_well()
    assert [event.worker for event in run.of(events.WorkerDied)] == [0]
    [went] = run.of(events.WentBack)
    assert went.reason == "worker 0 was lost in the code behind loop 2; all workers run it again"
    [died] = run.of(events.WorkerDied)
    assert "during the code behind loop 2" in died.reason
    assert not run.of(events.Resumed)


@pytest.mark.long
@pytest.mark.parametrize("workers", ["4", "2:4"])
@pytest.mark.parametrize("place", ["import", "joined", "connect", "start"])
def test_a_worker_killed_at_the_start_is_replaced(tmp_path: Path, place: str, workers: str) -> None:
    told(tmp_path, f"kill-{place}-1")
    with job(tmp_path, "-n", workers) as run:
        run.end_well()
    assert [event.worker for event in run.of(events.WorkerDied)] == [1]
    assert [event.worker for event in run.of(events.WorkerStarted)] == [4]


@pytest.mark.long
@pytest.mark.parametrize("place", ["behind", "writing", "evaluated"])
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
def test_workers_killed_behind_the_loop_one_after_the_other(
    tmp_path: Path, place: str, victims: tuple[int, ...]
) -> None:
    told(tmp_path, *(f"kill-{place}-{worker}" for worker in victims))
    with job(tmp_path, "-n", "3") as run:
        run.end_well()
    killed = [worker for worker in victims if f"{place} {worker}" in run.ran()]
    assert {event.worker for event in run.of(events.WorkerDied)} == set(killed)
    assert len(run.of(events.WentBack)) in (1, len(killed)) or not killed


@pytest.mark.long
@pytest.mark.parametrize("consistency", ["synchronous", "asynchronous"])
def test_a_first_worker_killed_behind_the_loop_of_a_job_with_servers(tmp_path: Path, consistency: str) -> None:
    told(tmp_path, "kill-writing-0")
    served = ("--strategy", "parameter-server", "--servers", "2", "--staleness-scaling", "none")
    with job(tmp_path, "-n", "2", *served, "--consistency", consistency) as run:
        run.end_well()
    assert run.of(events.WentBack)


@pytest.mark.long
def test_all_killed_behind_the_loop_begin_again_from_the_newest_checkpoint(tmp_path: Path) -> None:
    told(tmp_path, "kill-behind-0", "kill-behind-1")
    with job(tmp_path, "-n", "2", "--checkpoint-every", "3") as run:
        run.end_well()
    assert run.of(events.Resumed)


@pytest.mark.long
def test_a_worker_that_is_done_and_waits_may_be_killed(tmp_path: Path) -> None:
    """Nothing of its script is left to run: the others need not run anything again."""
    told(tmp_path, "hold-evaluated-0", "kill-done-1")
    with job(tmp_path, "-n", "3", "--checkpoint-every", "never") as run:
        run.wait_until_at("done", 1)
        run.wait_until_at("import", 3)  # its replacement, which is not needed
        (tmp_path / "hold-evaluated-0").unlink()
        run.end_well()
    assert [event.worker for event in run.of(events.WorkerDied)] == [1]
    assert not run.of(events.WentBack)


@pytest.mark.long
def test_a_worker_killed_while_it_writes_its_part_of_the_last_checkpoint(tmp_path: Path) -> None:
    """Nothing of its script is left to run, but the checkpoint is made again, by the others."""
    told(tmp_path, "kill-part-0")
    with job(tmp_path, "-n", "2") as run:
        run.end_well()
    assert not run.of(events.WentBack)
    assert run.of(events.CheckpointLost)
    assert json.loads((tmp_path / "result.json").read_text())["steps"] in [
        event.step for event in run.of(events.CheckpointPublished)
    ]


@pytest.mark.long
def test_who_takes_the_place_of_a_worker_that_is_killed_at_the_last_checkpoint_comes_in(tmp_path: Path) -> None:
    """The others have met for that checkpoint, and need one more worker to make it again."""
    told(tmp_path, "kill-part-0")
    with job(tmp_path, "-n", "2:2") as run:
        run.end_well()
    assert [event.worker for event in run.of(events.WorkerStarted)] == [2]
    assert not run.of(events.WorkerFailed)


@pytest.mark.long
def test_a_worker_that_is_done_and_told_to_go_does_not_wait(tmp_path: Path) -> None:
    told(tmp_path, "hold-evaluated-0")
    with job(tmp_path, "-n", "2", "--checkpoint-every", "never") as run:
        run.wait_until_at("done", 1)
        process = next(event for event in run.of(events.WorkerJoined) if event.worker == 1).process
        os.kill(process, signal.SIGTERM)
        run.wait_until_at("exit", 1)
        (tmp_path / "hold-evaluated-0").unlink()
        run.end_well()
    assert not run.of(events.WorkerDied)


@pytest.mark.long
def test_whatever_kills_the_first_worker_there_each_time_ends_the_job_with_a_word(tmp_path: Path) -> None:
    told(tmp_path, *(f"kill-writing-{worker}" for worker in range(20)))
    with job(tmp_path, "-n", "4", "--max-failures", "2", "--checkpoint-every", "5") as run:
        code, said = run.end()
    assert code == 3
    assert "the code behind the last loop was begun 2 times and never run to its end by all workers" in said
    assert "--resume" in said
    for path in tmp_path.glob("kill-*"):
        path.unlink()
    with started(tmp_path, "run", "--resume", "run", "--progress", "plain") as process:
        Job(tmp_path, process).end_well()


@pytest.mark.long
def test_a_worker_killed_behind_shoal_main_is_missed(tmp_path: Path) -> None:
    told(tmp_path, "goes-on", "kill-main-0")
    with job(tmp_path, "-n", "2") as run:
        code, said = run.end()
    assert code == 3
    assert "was killed by SIGKILL after the training was over and before its script had come to its last line" in said
    assert not (tmp_path / "after-main").exists()
    (tmp_path / "kill-main-0").unlink()
    with started(tmp_path, "run", "--resume", "run", "--progress", "plain") as process:
        Job(tmp_path, process).end_well()
    assert (tmp_path / "after-main").exists()


@pytest.mark.long
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_worker_killed_after_its_last_line_is_not_missed(tmp_path: Path, goes_on: bool) -> None:
    told(tmp_path, "kill-exit-0", "kill-exit-1", *(("goes-on",) if goes_on else ()))
    with job(tmp_path, "-n", "2") as run:
        run.end_well()
    assert (tmp_path / "after-main").exists() == goes_on
    assert not run.of(events.WorkerDied)


# A campaign of random kills


def plan(random_: random.Random) -> tuple[int, list[str]]:
    """A number of workers, and files that say where which of them die."""
    workers = random_.choice((1, 2, 3))
    files = []
    if random_.random() < 0.5:
        hit = random_.sample(range(workers), random_.randint(1, workers))
        files += [f"kill-{random_.choice(('import', 'joined', 'connect', 'start'))}-{worker}" for worker in hit]
    for worker in random_.sample(range(workers + 3), random_.randint(1, 2)):
        files.append(f"kill-{random_.choice(('behind', 'writing', 'evaluated', 'done', 'exit'))}-{worker}")
    return workers, files


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_exit_code_0_means_that_the_file_is_there_and_whole(tmp_path: Path, seed: int) -> None:
    """With at most three blows in all, within `--max-failures`, the job also comes to that."""
    random_ = random.Random(seed)
    workers, files = plan(random_)
    told(tmp_path, *files)
    rhythm = random_.choice(("end", "never", "3"))
    with job(tmp_path, "-n", str(workers), "--max-failures", "5", "--checkpoint-every", rhythm) as run:
        code, said = run.end()
        assert (code == 0) == is_whole(tmp_path), (files, code, said, run.ran())
        assert code == 0, (files, said)
