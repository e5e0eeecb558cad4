"""Whole jobs with parameter servers: what they come to, through deaths of workers and servers."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch

from support import served_script
from support.launcher import PATIENCE, leftovers, shoal, started
from support.served_script import assert_each_sample_once, events_of, result

SERVED = ("--strategy", "parameter-server", "--servers", "2")
FREE = (*SERVED, "--consistency", "asynchronous", "--staleness-scaling", "none")
BOUNDED = (*SERVED, "--staleness", "1", "--staleness-scaling", "none")
MODES = pytest.mark.parametrize("settings", [SERVED, FREE], ids=["synchronous", "asynchronous"])


def run(folder: Path, *options: str, clip: str = "", pause: float = 0.0) -> dict[str, object]:
    served_script.write(folder, clip=clip, pause=pause)
    outcome = shoal(folder, "run", *options, "script.py")
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    assert leftovers(folder) == []
    return result(folder)


def assert_close(one: dict[str, object], other: dict[str, object]) -> None:
    models = one["model"], other["model"]
    assert isinstance(models[0], dict) and isinstance(models[1], dict)
    for name, tensor in models[0].items():
        torch.testing.assert_close(tensor, models[1][name], rtol=1e-4, atol=1e-5)
    assert one["scores"] == pytest.approx(other["scores"], rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("clip", ["clip_norm=0.5", ""])
def test_synchronous_servers_come_to_what_all_reduce_comes_to(clip: str, tmp_path: Path) -> None:
    by_servers = run(tmp_path, "-n", "2", *SERVED, clip=clip)
    assert_close(run(tmp_path, "-n", "2", clip=clip), by_servers)
    assert_each_sample_once(by_servers)


@pytest.mark.long
@pytest.mark.parametrize("settings", [FREE, BOUNDED], ids=["any", "bounded"])
def test_workers_that_run_free_use_every_sample_once(settings: tuple[str, ...], tmp_path: Path) -> None:
    assert_each_sample_once(run(tmp_path, "-n", "3", *settings))


@pytest.mark.long
@MODES
def test_a_worker_that_is_killed_costs_no_sample(settings: tuple[str, ...], tmp_path: Path) -> None:
    chaos = ("--chaos", "kill worker at step 20")
    assert_each_sample_once(run(tmp_path, "-n", "3", *settings, *chaos, pause=0.02))


@pytest.mark.long
def test_who_comes_in_the_middle_of_a_loop_that_runs_free_works_in_it(tmp_path: Path) -> None:
    served_script.write(tmp_path, pause=0.15, one_loop=True)
    options = ("-n", "2", "--spares", "1", "--chaos", "kill worker at step 5", "--run-dir", "run", *FREE)
    outcome = shoal(tmp_path, "run", *options, "script.py")
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    assert_each_sample_once(result(tmp_path))
    applied = [event for event in events_of(tmp_path / "run") if event["kind"] == "steps-applied"]
    assert sum(event["samples"] for event in applied if event["worker"] == 2) > 0


@pytest.mark.long
@MODES
def test_a_server_that_is_killed_costs_no_sample(settings: tuple[str, ...], tmp_path: Path) -> None:
    chaos = ("--replicas", "2", "--chaos", "kill server at step 20")
    assert_each_sample_once(run(tmp_path, "-n", "2", *settings, *chaos, pause=0.02))


@pytest.mark.long
@pytest.mark.parametrize("settings", [SERVED, FREE, BOUNDED], ids=["synchronous", "asynchronous", "bounded"])
def test_without_replicas_a_dead_server_takes_the_job_back_to_its_checkpoint(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    options = ("--checkpoint-every", "10", "--chaos", "kill server at step 25", "--run-dir", "run")
    assert_each_sample_once(run(tmp_path, "-n", "2", *settings, *options, pause=0.02))
    told = [event for event in events_of(tmp_path / "run") if event["kind"] == "advised"]
    assert any("in no checkpoint are lost" in event["text"] for event in told)
    assert any(event["kind"] == "resumed" for event in events_of(tmp_path / "run"))


def stopped(folder: Path, *options: str) -> None:
    """A job that is asked to stop somewhere in its data, and leaves its checkpoint."""
    served_script.write(folder, pause=0.1)
    with started(folder, "run", "-n", "2", "--run-dir", "run", *options, "script.py") as process:
        limit = time.monotonic() + PATIENCE
        while not any(event["kind"] == "steps-applied" for event in events_of(folder / "run")):
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE)
    assert events_of(folder / "run")[-1]["outcome"] == "interrupted"
    (folder / "result.pt").unlink(missing_ok=True)  # what the script came to in half the time


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FREE, ("--strategy", "all-reduce")),
        (SERVED, ("--strategy", "all-reduce")),
        ((), ("--strategy", "parameter-server", "--servers", "3", "--replicas", "2")),
        ((), FREE),
        (FREE, ("--servers", "3")),
    ],
    ids=["free to all-reduce", "synchronous to all-reduce", "all-reduce to servers", "all-reduce to free", "servers"],
)
def test_a_checkpoint_moves(before: tuple[str, ...], after: tuple[str, ...], tmp_path: Path) -> None:
    stopped(tmp_path, *before)
    resumed = shoal(tmp_path, "run", "--resume", "run", *after)
    assert resumed.code == 0, resumed.stdout + resumed.stderr
    assert_each_sample_once(result(tmp_path))


@pytest.mark.long
def test_synchronous_training_goes_on_elsewhere_with_its_optimizers_state(tmp_path: Path) -> None:
    whole = run(tmp_path, "-n", "2")
    stopped(tmp_path, *SERVED)
    assert shoal(tmp_path, "run", "--resume", "run", "--strategy", "all-reduce").code == 0
    assert_close(whole, result(tmp_path))
