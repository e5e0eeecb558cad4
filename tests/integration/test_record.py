"""What a job's record says is what happened, by what the workers themselves wrote down."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal import events
from shoal.watch.incident_words import in_a_line, without_progress
from support import truth
from support.launcher import PATIENCE, command_of, events_in, leftovers, processes_in, shoal, started
from support.truth import Told, Truth, diaries, told_of, truth_of

SERVED = ("--strategy", "parameter-server", "--servers", "2")
FREE = (*SERVED, "--consistency", "asynchronous", "--staleness-scaling", "none")
NEAR = 1.5  # seconds that two measures of one time may be apart on a busy machine


class Watched:
    def __init__(self, folder: Path, process: Any, *, is_free: bool, epochs: int) -> None:
        self.folder = folder
        self.process = process
        self.is_free = is_free
        self.epochs = epochs

    def wait_for(self, is_there: Callable[[], Any]) -> Any:
        limit = time.monotonic() + 2 * PATIENCE
        while not (found := is_there()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < limit, [type(event).__name__ for event in events_in(self.folder / "run")][-20:]
            time.sleep(0.02)
        return found

    def has_noted(self, kind: type[Any], count: int = 1) -> bool:
        return sum(isinstance(event, kind) for event in events_in(self.folder / "run")) >= count

    def wait_for_steps(self, count: int) -> None:
        """So many more on some worker."""
        before = len(diaries(self.folder))
        self.wait_for(lambda: len(diaries(self.folder)) >= before + 2 * count)

    def processes(self, kind: str) -> list[psutil.Process]:
        found = [(process, command_of(process)) for process in processes_in(self.folder)]
        if kind == "worker":
            return [process for process, line in found if "script.py" in line and "shoal" not in line]
        return [process for process, line in found if kind in line]

    def end(self) -> tuple[Truth, Told]:
        out, err = self.process.communicate(timeout=3 * PATIENCE)
        assert self.process.returncode == 0, out[-3000:] + err[-3000:]
        assert leftovers(self.folder) == []
        return self.compare()

    def compare(self) -> tuple[Truth, Told]:
        """What is true of every job, whatever happened to it."""
        result = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
        assert result["off"] < 1e-6, "each sample counts once in each epoch"
        true = truth_of(self.folder, is_free=self.is_free, epochs=self.epochs)
        told = told_of(self.folder / "run", events_in(self.folder / "run"))
        total = self.epochs * truth.SAMPLES
        assert told.cost.samples == total
        back = sum(event.samples_taken_back for event in told.of(events.ProgressResumed))
        resumed_behind = sum(samples for _, samples in told.cost.taken_back.values())
        assert sum(line.samples for line in told.lines) - back - resumed_behind <= total
        assert told.record.step == result["step"]
        return true, told


@contextlib.contextmanager
def job(folder: Path, *options: str, epochs: int = 1, **numbers: float) -> Iterator[Watched]:
    truth.write(folder)
    arguments = [f"--{name}={value}" for name, value in {"epochs": epochs, **numbers}.items()]
    settings = ("-n", "2", "--run-dir", "run", "--progress", "plain", "--threads", "1", *options)
    with started(folder, "run", *settings, "script.py", *arguments) as process:
        yield Watched(folder, process, is_free="asynchronous" in options, epochs=epochs)


@pytest.mark.long
def test_a_job_whose_workers_run_free_through_the_loss_of_all_its_servers(tmp_path: Path) -> None:
    """Its coordinator was killed, all workers were stopped and all servers were lost; no worker was."""
    with job(tmp_path, *FREE, "--checkpoint-every", "20", "--heartbeat-limit", "2", epochs=3, pause=0.1) as run:
        run.wait_for(lambda: run.has_noted(events.CheckpointPublished))
        [coordinator] = run.processes("coordinator")
        coordinator.kill()
        run.wait_for(lambda: run.has_noted(events.WorkerReturned, 2))
        run.wait_for_steps(3)
        for worker in (workers := run.processes("worker")):
            worker.suspend()
        run.wait_for(lambda: run.has_noted(events.Waiting))
        for worker in workers:
            worker.resume()
        run.wait_for_steps(3)
        for server in run.processes("server"):
            server.kill()
        true, told = run.end()
    assert told.samples == true.samples, "totals go on when the coordinator is another one"
    resumed = told.of(events.ProgressResumed)
    assert sum(event.taken_back for event in resumed) == true.redone > 0
    assert [event.server for event in told.of(events.ParametersGone)] == [None]
    assert len(told.of(events.ServerLost)) == 2
    summary = in_a_line(told.record.story.incidents, told.cost)
    assert "2 servers lost, the coordinator restarted once" in summary
    # By the clock, and not by the sum of the workers' times.
    lasted = true.times[-1] - true.times[0]
    assert told.cost.seconds == pytest.approx(lasted, abs=NEAR)
    assert told.cost.rate is not None
    assert told.cost.rate > truth.BATCH / 0.1, "of both workers together"
    stood = sum(event.seconds for event in resumed)
    assert true.longest - NEAR <= stood <= lasted - len(true.times) * 0.02
    assert all(incident.resumed is not None for incident in told.record.story.incidents if incident.is_stop)
    [ended] = told.of(events.JobEnded)
    assert ended.seconds == pytest.approx(told.record.story.seconds, abs=NEAR)
    lane = "servers lost: 2"
    assert lane in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_regroupings_in_a_row_whose_last_member_had_just_come_in(tmp_path: Path) -> None:
    """Worker 0 is lost; worker 1 gives its state to the newcomer slowly, and dies before a step is applied."""
    with job(tmp_path, pause=0.2, hurry=4, slow=4.0, die=3) as run:
        run.wait_for_steps(4)
        joined = [event for event in events_in(tmp_path / "run") if isinstance(event, events.WorkerJoined)]
        victim = next(event for event in joined if event.worker == 0)
        psutil.Process(victim.process).kill()
        _, told = run.end()
    applied = [row for row in diaries(tmp_path) if row["counts"]]
    assert not any(row["generation"] == 3 for row in applied)
    last = max(row["time"] for row in applied if row["generation"] == 2)
    lasted = min(row["time"] for row in applied if row["generation"] >= 4) - last
    assert lasted > 4.0
    resumed = next(event for event in told.of(events.ProgressResumed) if event.generation >= 4)
    assert resumed.seconds == pytest.approx(lasted, abs=NEAR)
    assert without_progress(told.record.story.incidents, told.cost) >= lasted - NEAR


@pytest.mark.long
def test_the_loss_of_all_servers_takes_back_what_is_in_no_checkpoint(tmp_path: Path) -> None:
    with job(tmp_path, *SERVED, "--checkpoint-every", "10", epochs=2) as run:
        run.wait_for(lambda: run.has_noted(events.CheckpointPublished))
        run.wait_for_steps(6)
        for server in run.processes("server"):
            server.kill()
        true, told = run.end()
    [resumed] = told.of(events.ProgressResumed)
    assert resumed.taken_back == true.redone > 0
    assert resumed.redone == true.redone + true.void // 2, "each of both workers wrote down each void try"
    assert resumed.seconds == pytest.approx(true.longest, abs=NEAR)
    assert told.samples == true.samples
    assert [event.server for event in told.of(events.ParametersGone)] == [None]


@pytest.mark.long
@pytest.mark.parametrize("options", [(), SERVED, FREE], ids=["all-reduce", "synchronous", "asynchronous"])
def test_the_loss_of_all_workers_takes_back_what_is_in_no_checkpoint(options: tuple[str, ...], tmp_path: Path) -> None:
    with job(tmp_path, *options, "--checkpoint-every", "10", epochs=2) as run:
        run.wait_for(lambda: run.has_noted(events.CheckpointPublished))
        run.wait_for_steps(6)
        for worker in run.processes("worker"):
            worker.kill()
        true, told = run.end()
    [resumed] = told.of(events.ProgressResumed)
    if options:  # the servers know of all that was applied
        assert resumed.taken_back == true.redone
    else:  # what was applied in the last quarter of a second nobody was left to tell
        assert true.redone - 10 <= resumed.taken_back <= true.redone
    assert resumed.taken_back > 0
    assert resumed.seconds == pytest.approx(true.longest, abs=NEAR)


@pytest.mark.long
def test_all_workers_that_are_stopped_for_a_while(tmp_path: Path) -> None:
    with job(tmp_path, "--heartbeat-limit", "2", epochs=2) as run:
        run.wait_for_steps(10)
        for worker in (workers := run.processes("worker")):
            worker.suspend()
        run.wait_for(lambda: run.has_noted(events.Waiting))
        for worker in workers:
            worker.resume()
        true, told = run.end()
    assert sum(event.seconds for event in told.of(events.ProgressResumed)) == pytest.approx(true.longest, abs=NEAR)
    assert told.cost.seconds == pytest.approx(true.times[-1] - true.times[0], abs=NEAR)
    assert all(incident.resumed is not None for incident in told.record.story.incidents)


@pytest.mark.long
def test_a_job_that_was_killed_and_is_resumed_goes_on_with_its_totals(tmp_path: Path) -> None:
    with job(tmp_path, "--checkpoint-every", "10", epochs=3) as run:
        run.wait_for(lambda: run.has_noted(events.CheckpointPublished, 3))
        run.wait_for_steps(6)
        for process in (run.process, *(processes := processes_in(tmp_path))):
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes)
        run.process.communicate()
        for path in (tmp_path / "runtime").iterdir():  # of the launcher that could not
            shutil.rmtree(path)
        outcome = shoal(tmp_path, "run", "--resume", "run", patience=2 * PATIENCE)
        assert outcome.code == 0, outcome.stdout + outcome.stderr
        true, told = run.compare()
    [(steps, samples)] = [back for back in told.cost.taken_back.values() if back[0]]
    assert true.redone - 10 <= steps <= true.redone
    assert samples == steps * 2 * truth.BATCH
    for worker, count in true.samples.items():
        assert 0.8 * count <= told.samples[worker] <= count, "what was written last goes for the rest"
    assert len(told.record.story.spans) == 2
