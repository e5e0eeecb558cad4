"""Whole jobs whose processes die, stop, hang, fail and leave: training goes on, and every sample counts once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal import events
from support.launcher import command_of, events_in, leftovers, started

SCRIPT = Path(__file__).parents[1] / "support" / "counting_script.py"
PATIENCE = 180.0
MOST_BLOWS = 2  # in a row before a step: the third round of processes that die at their start ends a job


class Elastic:
    """A job in a folder of its own, looked at from outside."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    def events(self) -> list[events.AnyEvent]:
        return events_in(self.folder / "run")

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events() if isinstance(event, kind)]

    def wait_for(self, is_there: Callable[[], Any]) -> Any:
        limit = time.monotonic() + PATIENCE
        while not (found := is_there()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < limit, [type(event).__name__ for event in self.events()][-20:]
            time.sleep(0.05)
        return found

    def await_step(self, step: int) -> None:
        self.wait_for(lambda: any(event.step >= step for event in self.of(events.StepsApplied)))

    def pid(self, worker: int) -> int:
        joined = self.wait_for(lambda: [e for e in self.of(events.WorkerJoined) if e.worker == worker])
        return int(joined[-1].process)

    def signal(self, worker: int, number: signal.Signals) -> None:
        os.kill(self.pid(worker), number)

    def workers(self) -> list[psutil.Process]:
        """Not the coordinator, whose command line names the script too: SIGTERM to it stops the job."""
        children = psutil.Process(self.process.pid).children()
        return [p for p in children if str(SCRIPT) in (line := command_of(p)) and "coordinator" not in line]

    def coordinator(self) -> psutil.Process:
        found = [p for p in psutil.Process(self.process.pid).children() if "coordinator" in command_of(p)]
        return found[0]

    def end(self, code: int = 0) -> tuple[str, str]:
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == code, (self.process.returncode, out[-3000:], err[-3000:])
        assert leftovers(self.folder) == []
        return out, err

    def end_exactly(self) -> dict[str, Any]:
        self.end()
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        assert result["off"] < 1e-6, result
        return result


@contextlib.contextmanager
def job(
    folder: Path, *options: str, traps: dict[int, tuple[str, int]] | None = None, **numbers: Any
) -> Iterator[Elastic]:
    arguments = [f"--{name}={value}" for name, value in numbers.items()]
    settings = ("--run-dir", "run", "--progress", "plain", "--threads", "1", *options)
    script = (str(SCRIPT), "--traps", json.dumps(traps or {}), *arguments)
    with started(folder, "run", *settings, *script) as process:
        yield Elastic(folder, process)


@pytest.mark.long
def test_kills_in_forward_backward_and_update_one_after_the_other(tmp_path: Path) -> None:
    """The survivors keep their processes; each loss is one new generation, and replacements come in."""
    traps = {1: ("forward", 10), 2: ("backward", 30), 3: ("update", 50)}
    with job(tmp_path, "-n", "4", traps=traps, epochs=3, gate=60) as run:
        before = run.pid(0)
        run.wait_for(lambda: len({event.worker for event in run.of(events.WorkerJoined)}) >= 6)
        (tmp_path / "open").touch()
        result = run.end_exactly()
    assert result["pid"] == before
    assert {event.worker for event in run.of(events.WorkerDied)} == {1, 2, 3}
    for event in run.of(events.WorkerDied):
        assert "was killed by SIGKILL" in event.reason
    assert run.of(events.ProgressResumed)


@pytest.mark.long
def test_kills_while_regrouping_connecting_and_copying(tmp_path: Path) -> None:
    """Worker 1 starts it; 2 and then 3 die on the way into the next generation, a newcomer while it is copied to."""
    traps = {1: ("script", 10), 2: ("compare", 1), 3: ("connect", 1), 4: ("copy", 0), 5: ("copy", 0)}
    with job(tmp_path, "-n", "4", traps=traps, epochs=20) as run:
        run.end_exactly()
    assert {event.worker for event in run.of(events.WorkerDied)} >= {1, 2, 3, 4}


@pytest.mark.long
def test_three_of_four_die_at_once_and_during_a_checkpoint(tmp_path: Path) -> None:
    with job(tmp_path, "-n", "4", "--checkpoint-every", "7", traps={3: ("part", 12)}, epochs=6) as run:
        run.wait_for(lambda: run.of(events.WorkerDied))
        run.await_step(25)
        for worker in (0, 1, 2):
            with contextlib.suppress(ProcessLookupError):
                run.signal(worker, signal.SIGKILL)
        run.end_exactly()
    assert {event.worker for event in run.of(events.WorkerDied)} >= {0, 1, 2, 3}


@pytest.mark.long
def test_all_die_and_the_job_starts_again_from_its_checkpoint_by_itself(tmp_path: Path) -> None:
    with job(tmp_path, "-n", "2", "--checkpoint-every", "10", epochs=3) as run:
        run.wait_for(lambda: run.of(events.CheckpointPublished))
        for worker in (0, 1):
            run.signal(worker, signal.SIGKILL)
        run.end_exactly()
    published = [event.step for event in run.of(events.CheckpointPublished)]
    (resumed,) = run.of(events.Resumed)
    assert resumed.step in published


@pytest.mark.long
def test_the_coordinator_dies_twice_and_a_worker_with_it_once(tmp_path: Path) -> None:
    with job(tmp_path, "-n", "3", epochs=6) as run:
        run.await_step(20)
        run.coordinator().kill()
        run.wait_for(lambda: run.of(events.CoordinatorReturned))
        run.await_step(40)
        run.coordinator().kill()
        run.signal(1, signal.SIGKILL)
        run.wait_for(lambda: len(run.of(events.CoordinatorReturned)) == 2)
        result = run.end_exactly()
    assert result["size"] >= 2
    assert 1 in {event.worker for event in run.of(events.WorkerDied)}


@pytest.mark.long
def test_a_stopped_worker_is_expelled_and_comes_back(tmp_path: Path) -> None:
    with job(tmp_path, "-n", "3", "--heartbeat-limit", "1", epochs=8) as run:
        run.await_step(10)
        run.signal(1, signal.SIGSTOP)
        run.wait_for(lambda: [e for e in run.of(events.GenerationFormed) if 1 not in e.workers])
        run.signal(1, signal.SIGCONT)
        run.wait_for(lambda: [e for e in run.of(events.GenerationFormed)[1:] if 1 in e.workers])
        run.end_exactly()


@pytest.mark.long
def test_a_hang_in_the_script_is_expelled_and_comes_back(tmp_path: Path) -> None:
    with job(tmp_path, "-n", "3", "--hang-limit", "2", traps={2: ("hang", 10)}, epochs=8) as run:
        run.wait_for(lambda: run.of(events.WorkerExpelled))
        run.end_exactly()
    assert run.of(events.WorkerExpelled)[0].worker == 2


@pytest.mark.long
def test_sigterm_to_one_worker_hands_over_and_is_no_failure(tmp_path: Path) -> None:
    with job(tmp_path, "-n", "3", epochs=5) as run:
        run.await_step(10)
        process = psutil.Process(run.pid(1))
        run.signal(1, signal.SIGTERM)
        run.wait_for(lambda: [e for e in run.of(events.WorkerLeft) if e.worker == 1])
        run.end_exactly()
    assert not process.is_running()
    assert not run.of(events.WorkerDied)
    assert not run.of(events.StepVoided)


@pytest.mark.long
def test_a_worker_that_runs_out_of_memory_is_replaced(tmp_path: Path) -> None:
    """As an exception, which torch raises, here; the kernel's way is a SIGKILL."""
    with job(tmp_path, "-n", "2", traps={1: ("memory", 10)}, epochs=3) as run:
        run.end_exactly()
    (failed,) = run.of(events.WorkerFailed)
    assert failed.worker == 1 and "memory" in failed.text


@pytest.mark.long
def test_the_scripts_own_mistake_ends_the_job_after_some_and_is_shown_once(tmp_path: Path) -> None:
    traps = dict.fromkeys(range(1, 12), ("raise", 10))
    with job(tmp_path, "-n", "2", "--max-failures", "2", traps=traps, epochs=30) as run:
        _, err = run.end(code=1)
    assert err.count("RuntimeError: the script's own mistake") == 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_campaign_of_kills(tmp_path: Path, seed: int) -> None:
    """Workers and the coordinator are killed, stopped and told to go, again and again."""
    draw = random.Random(seed)
    limit = time.monotonic() + 45
    with job(
        tmp_path, "-n", "4", "--heartbeat-limit", "2", "--checkpoint-every", "20", "--spares", "1", epochs=12
    ) as run:
        run.await_step(5)
        blows, seen = 0, len(run.of(events.StepsApplied))  # blows in a row without progress
        while time.monotonic() < limit and run.process.poll() is None:
            time.sleep(draw.uniform(0.5, 3.0))
            progress = len(run.of(events.StepsApplied))
            if progress == seen and blows == MOST_BLOWS:
                continue
            blows, seen = (1, progress) if progress > seen else (blows + 1, seen)
            workers = run.workers()
            what = draw.random()
            with contextlib.suppress(psutil.Error, IndexError):
                if what < 0.15:
                    run.coordinator().kill()
                elif what < 0.3:
                    draw.choice(workers).terminate()
                elif what < 0.45:
                    victim = draw.choice(workers)
                    victim.suspend()
                    time.sleep(draw.uniform(0.5, 4))
                    victim.resume()
                else:
                    for victim in draw.sample(workers, min(len(workers), draw.choice([1, 1, 1, 2, 3]))):
                        victim.kill()
        run.end_exactly()
