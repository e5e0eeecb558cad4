"""Whole jobs that somebody joins with another script: the joiner ends with both values, and the job does not notice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal import events
from shoal.training.script.texts import DATA_ADVICE
from support.launcher import SHOAL, command_of, events_in, leftovers, shoal, started

SCRIPT = Path(__file__).parents[1] / "support" / "terms_script.py"
PATIENCE = 180.0
ADVICE = "start it with the script and the arguments that the job was started with"
SAMPLES = 200
GATE = 30  # steps of two workers: in the second loop, after 25 in the first one
EXACT = pytest.approx({"least": 3.0, "most": 3.0, "total": 3.0 * SAMPLES})


class Job:
    """In a folder of its own, with workers that wait at the gate."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    def wait_for(self, is_there: Callable[[], Any]) -> Any:
        limit = time.monotonic() + PATIENCE
        while not (found := is_there()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < limit, [type(event).__name__ for event in self.events()][-20:]
            time.sleep(0.05)
        return found

    def events(self) -> list[events.AnyEvent]:
        return events_in(self.folder / "run")

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events() if isinstance(event, kind)]

    def wait_at_gate(self, *workers: int) -> None:
        self.wait_for(lambda: all((self.folder / f"worker-{worker}-waits").exists() for worker in workers))

    def way_in(self) -> list[str]:
        """The arguments with which a worker is added, as `shoal show` says."""
        command = [*SHOAL, "show", "run"]
        shown = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout
        return next(line for line in shown.splitlines() if "shoal join" in line).partition("shoal ")[2].split()

    def end(self) -> dict[str, float]:
        """Let the workers through the gate."""
        (self.folder / "open").touch()
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, (out[-3000:], err[-3000:])
        assert leftovers(self.folder) == []
        found: dict[str, float] = json.loads((self.folder / "result.json").read_text())
        return found


@contextlib.contextmanager
def job(
    folder: Path,
    *options: str,
    workers: int = 2,
    script: Path = SCRIPT,
    terms: tuple[str, ...] = ("--epochs", "2"),
) -> Iterator[Job]:
    settings = ("--run-dir", "run", "--progress", "plain", "--threads", "1", "--checkpoint-every", "10", *options)
    gate = GATE * 2 // workers  # a step of fewer workers has fewer samples
    with started(folder, "run", "-n", str(workers), *settings, str(script), "--gate", str(gate), *terms) as process:
        run = Job(folder, process)
        run.wait_at_gate(*range(workers))
        yield run


def advice_for(words: str) -> str:
    return DATA_ADVICE if "number of samples" in words else ADVICE


def turned_away(run: Job, terms: tuple[str, ...], *joiners: tuple[tuple[str, ...], str]) -> None:
    """Each joiner comes with these arguments besides the job's, and ends with these words."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(started(run.folder, *run.way_in(), "--threads", "1", str(SCRIPT), *terms, *other))
            for other, _ in joiners
        ]
        for process, (_, words) in zip(processes, joiners, strict=True):
            out, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 8, (out, err)
            assert f"shoal: error: {words}; {advice_for(words)}" in out + err
    noted = {event.text: event for event in run.of(events.WorkerFailed)}
    for _, words in joiners:
        assert noted[f"{words}; {advice_for(words)}"].error == "TermsDiffer"


def assert_untouched(run: Job) -> None:
    """Nobody regrouped, no step was void, no checkpoint was lost."""
    assert [event.generation for event in run.of(events.GenerationFormed)] == [1]
    for kind in (events.StepVoided, events.CheckpointLost, events.WorkerDied):
        assert not run.of(kind)
    assert run.of(events.CheckpointPublished)


@pytest.mark.long
def test_joiners_with_another_batch_size_and_another_model_end_alone(tmp_path: Path) -> None:
    """The batch size of the loop that the job is in, which comes after a loop and an evaluation that are over."""
    terms = ("--epochs", "2")
    with job(tmp_path, workers=1, terms=terms) as run:
        turned_away(
            run,
            terms,
            (("--batch", "2"), "loop 2: batch size is 4 in the job and 2 in this worker's script"),
            (
                ("--width", "5"),
                "model 1: parameter 'layer.weight' is [3, 4] float32 in the job and [5, 4] float32 in this worker's "
                "script",
            ),
        )
        assert run.end() == EXACT
    assert_untouched(run)


@pytest.mark.long
def test_joiners_with_any_other_term_end_alone_and_one_with_the_same_is_let_in(tmp_path: Path) -> None:
    terms = ("--epochs", "2")
    with job(tmp_path, terms=terms) as run:
        turned_away(
            run,
            terms,
            (("--samples", "300"), "loop 1: number of samples is 200 in the job and 300 in this worker's script"),
            (("--optimizer", "SGD"), "optimizer 2: class is AdamW in the job and SGD in this worker's script"),
            (
                ("--weight-decay", "0.5"),
                "optimizer 2: weight_decay of group 1 is 0.01 in the job and 0.5 in this worker's script",
            ),
            (("--epochs", "3"), "loop 2: number of epochs is 2 in the job and 3 in this worker's script"),
            (("--accumulate", "2"), "loop 2: accumulate is 1 in the job and 2 in this worker's script"),
            (("--first-batch", "8"), "loop 1: batch size is 4 in the job and 8 in this worker's script"),
        )
        assert_untouched(run)
        with started(tmp_path, *run.way_in(), "--threads", "1") as joiner:  # the job's own script and arguments
            run.wait_for(lambda: len(run.of(events.WorkerJoined)) == 9)
            assert run.end() == EXACT
            assert joiner.wait(timeout=PATIENCE) == 0


@pytest.mark.long
def test_in_a_loop_of_steps_too(tmp_path: Path) -> None:
    """Nothing at such a loop's end would tell that samples were used twice, or never.

    The coordinator is started again before anybody comes: it learns from a member what the job's script has called.
    """
    terms = ("--steps", "60")
    with job(tmp_path, terms=terms) as run:
        (coordinator,) = [one for one in psutil.Process(run.process.pid).children() if "coordinator" in command_of(one)]
        coordinator.kill()
        run.wait_for(lambda: len(run.of(events.WorkerReturned)) == 2)
        turned_away(
            run,
            terms,
            (("--batch", "2"), "loop 2: batch size is 4 in the job and 2 in this worker's script"),
            (("--steps", "70"), "loop 2: number of steps is 60 in the job and 70 in this worker's script"),
        )
        assert run.end()["total"] == pytest.approx(SAMPLES + 60 * 8)
    assert_untouched(run)


@pytest.mark.long
@pytest.mark.parametrize(
    "consistency",
    [
        ("--consistency", "asynchronous", "--staleness-scaling", "none"),
        ("--staleness", "2", "--staleness-scaling", "none"),
        ("--consistency", "synchronous"),
    ],
)
def test_in_jobs_with_parameter_servers_too(consistency: tuple[str, ...], tmp_path: Path) -> None:
    terms = ("--epochs", "2")
    with job(tmp_path, "--strategy", "parameter-server", "--servers", "1", *consistency, terms=terms) as run:
        turned_away(
            run,
            terms,
            (("--batch", "2"), "loop 2: batch size is 4 in the job and 2 in this worker's script"),
            (("--optimizer", "SGD"), "optimizer 2: class is AdamW in the job and SGD in this worker's script"),
        )
        assert run.end() == EXACT
    assert_untouched(run)


@pytest.mark.long
def test_a_script_that_was_changed_while_the_job_runs_is_not_started_for_ever(tmp_path: Path) -> None:
    """Processes in the place of a killed worker read the changed script: two are turned away, and then it is enough."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.read_text())
    with job(tmp_path, "--max-failures", "2", script=script) as run:
        script.write_text(
            SCRIPT.read_text().replace('"--batch", type=int, default=4', '"--batch", type=int, default=2')
        )
        (joined,) = [event for event in run.of(events.WorkerJoined) if event.worker == 1]
        os.kill(joined.process, signal.SIGKILL)
        run.wait_for(lambda: len(run.of(events.WorkerFailed)) == 2)
        found = run.end()
    assert found == EXACT
    assert {event.error for event in run.of(events.WorkerFailed)} == {"TermsDiffer"}
    assert len(run.of(events.WorkerStarted)) == 2
    assert [event.workers for event in run.of(events.GenerationFormed)] == [(0, 1), (0,)]


@pytest.mark.long
def test_a_resumed_job_with_another_data_set_is_refused_and_with_another_batch_is_exact(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        # Not for that of the gate's step: if the one before is still being written then, it waits for a step to come.
        run.wait_for(lambda: run.of(events.CheckpointPublished))
        run.process.send_signal(signal.SIGINT)
        (tmp_path / "open").touch()
        assert run.process.wait(timeout=PATIENCE) == 130
    script = (str(SCRIPT), "--epochs", "2")
    refused = shoal(tmp_path, "run", "--resume", "run", *script, "--samples", "300", patience=PATIENCE)
    assert refused.code == 9, refused
    assert "number of samples of loop 2 was 200 when it was made" in refused.stderr
    resumed = shoal(tmp_path, "run", "--resume", "run", "-n", "3", *script, "--batch", "3", patience=PATIENCE)
    assert resumed.code == 0, resumed
    assert json.loads((tmp_path / "result.json").read_text()) == EXACT
