"""Whole jobs with parameter servers: what they come to, through deaths of workers and servers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support import served_script
from support.launcher import leftovers, shoal
from support.served_script import EPOCHS, SAMPLES, result, uses

SERVED = ("--strategy", "parameter-server", "--servers", "2")
FREE = (*SERVED, "--consistency", "asynchronous", "--staleness-scaling", "none")


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


@pytest.mark.parametrize("clip", ["", "clip_norm=0.5"])
def test_synchronous_servers_come_to_what_all_reduce_comes_to(clip: str, tmp_path: Path) -> None:
    by_servers = run(tmp_path, "-n", "2", *SERVED, clip=clip)
    assert_close(run(tmp_path, "-n", "2", clip=clip), by_servers)
    assert uses(by_servers) == pytest.approx([EPOCHS] * SAMPLES, abs=1e-9)


@pytest.mark.parametrize("more", [(), ("--staleness", "1")], ids=["any staleness", "staleness 1"])
def test_workers_that_run_free_use_every_sample_once(more: tuple[str, ...], tmp_path: Path) -> None:
    settings = (*SERVED, *more, "--staleness-scaling", "none") if more else FREE
    assert uses(run(tmp_path, "-n", "3", *settings)) == pytest.approx([EPOCHS] * SAMPLES, abs=1e-9)


@pytest.mark.parametrize("settings", [SERVED, FREE], ids=["synchronous", "asynchronous"])
def test_a_worker_that_is_killed_costs_no_sample(settings: tuple[str, ...], tmp_path: Path) -> None:
    chaos = ("--chaos", "kill worker at step 20")
    assert uses(run(tmp_path, "-n", "3", *settings, *chaos, pause=0.02)) == pytest.approx([EPOCHS] * SAMPLES, abs=1e-9)


@pytest.mark.parametrize("settings", [SERVED, FREE], ids=["synchronous", "asynchronous"])
def test_a_server_that_is_killed_costs_no_sample(settings: tuple[str, ...], tmp_path: Path) -> None:
    chaos = ("--replicas", "2", "--chaos", "kill server at step 20")
    assert uses(run(tmp_path, "-n", "2", *settings, *chaos, pause=0.02)) == pytest.approx([EPOCHS] * SAMPLES, abs=1e-9)
