"""Whole jobs that are killed and resumed: same place in the data, same result, bit for bit."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from support.launcher import PATIENCE, leftovers, processes_in, shoal, started

SCRIPT = """
import time
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
import shoal

SAMPLES, EPOCHS = 203, 3

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.uses = nn.Embedding(SAMPLES, 1, dtype=torch.float64)
        self.first = nn.Linear(6, 32)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(32, 4)
        nn.init.zeros_(self.uses.weight)

    def forward(self, x):
        hidden = self.norm(self.first(x).reshape(len(x), 16, 2)).flatten(1)
        return self.last(self.drop(F.relu(hidden)))

def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(torch.arange(SAMPLES), x, torch.randint(4, (SAMPLES,), generator=generator))

def train(run):
    model = run.model(Net())
    weights = [p for name, p in model.named_parameters() if name != "uses.weight"]
    optimizer = run.optimizer(torch.optim.AdamW(weights, lr=0.01))
    counting = run.optimizer(torch.optim.SGD([model.uses.weight], lr=1.0))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    run.keep(schedule=schedule)
    scores = []
    for epoch in run.epochs(EPOCHS):
        for index, x, y in epoch.batches(data(), batch_size=4):
            # The mean over a batch of n is weighted by n over all samples of the step: -1 for each use.
            uses = -model.uses(index).mean() * run._session.iteration.step_samples
            (F.cross_entropy(model(x), y) + uses).backward()
            optimizer.step()
            counting.step()
            schedule.step()
            optimizer.zero_grad()
            counting.zero_grad()
            time.sleep(PAUSE)
        scores.append(run.evaluate(lambda index, x, y: F.cross_entropy(model(x), y), data(), batch_size=20)["score"])
    if run.is_first:
        torch.save({"model": model.state_dict(), "rate": schedule.get_last_lr(), "scores": scores}, "result.pt")

if __name__ == "__main__":
    shoal.main(train)
"""


def write_script(folder: Path, *, pause: float) -> None:
    (folder / "script.py").write_text(SCRIPT.replace("PAUSE", str(pause)))


def result(folder: Path) -> dict[str, object]:
    found: dict[str, object] = torch.load(folder / "result.pt", weights_only=True)
    (folder / "result.pt").unlink()
    return found


def assert_same(one: dict[str, object], other: dict[str, object]) -> None:
    models = one["model"], other["model"]
    assert isinstance(models[0], dict) and isinstance(models[1], dict)
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name]), name
    assert (one["rate"], one["scores"]) == (other["rate"], other["scores"])


def assert_each_sample_once(found: dict[str, object]) -> None:
    model = found["model"]
    assert isinstance(model, dict)
    assert model["uses.weight"].flatten().tolist() == pytest.approx([3.0] * 203, abs=1e-9)


def kill_everything(folder: Path, launcher: psutil.Process) -> None:
    """All processes of the job at once, as when a machine loses power."""
    victims = [launcher, *launcher.children(recursive=True), *processes_in(folder)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):  # with the launcher its workers go by themselves
                victim.send_signal(number)


def published(folder: Path) -> list[int]:
    """Steps of checkpoints that have a manifest."""
    names = (path.parent.name for path in folder.glob("run/checkpoints/step-*/manifest.json"))
    return sorted(int(name.split("-")[1]) for name in names)


def run_and_kill(folder: Path, workers: int, *, after: float, every: int) -> None:
    """Start a job and kill all of it `after` seconds from its first checkpoint on."""
    options = ("-n", str(workers), "--run-dir", "run", "--checkpoint-every", str(every))
    with started(folder, "run", *options, "script.py") as process:
        limit = time.monotonic() + PATIENCE
        while not published(folder):
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.01)
        time.sleep(after)
        kill_everything(folder, psutil.Process(process.pid))
        process.wait(timeout=PATIENCE)
    for token in (folder / "runtime").iterdir():  # nobody was left to remove it
        shutil.rmtree(token)
    assert leftovers(folder) == []


def killed_and_resumed(folder: Path, workers: int, point: int) -> dict[str, object]:
    draw = random.Random(point)
    run_and_kill(folder, workers, after=draw.uniform(0.0, 1.2), every=draw.choice([1, 5, 13]))
    assert not (folder / "result.pt").exists(), "the job was over before it was killed"
    checked = shoal(folder, "checkpoints", "run", "--verify")
    assert checked.code == 0, checked.stdout + checked.stderr
    last = published(folder)[-1]
    resumed = shoal(folder, "run", "--resume", "run")
    assert resumed.code == 0, resumed.stdout + resumed.stderr
    assert f"resumed at step {last} from" in resumed.stdout
    return result(folder)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_job_killed_as_a_whole_goes_on_as_if_nothing_had_been(workers: int, tmp_path: Path) -> None:
    write_script(tmp_path, pause=0.03 * workers)
    found = killed_and_resumed(tmp_path, workers, point=workers)
    assert shoal(tmp_path, "run", "-n", str(workers), "script.py").code == 0
    assert_same(result(tmp_path), found)
    assert_each_sample_once(found)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_six_kills_at_random_moments(workers: int, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    write_script(whole, pause=0.0)
    assert shoal(whole, "run", "-n", str(workers), "script.py").code == 0
    expected = result(whole)
    for point in range(6):
        folder = tmp_path / str(point)
        folder.mkdir()
        write_script(folder, pause=0.03 * workers)  # more workers need fewer steps; it must not be over too soon
        assert_same(expected, killed_and_resumed(folder, workers, point=100 * workers + point))


@pytest.mark.long
def test_with_another_number_of_workers_every_sample_still_counts_once(tmp_path: Path) -> None:
    write_script(tmp_path, pause=0.02)
    run_and_kill(tmp_path, 2, after=0.3, every=7)
    resumed = shoal(tmp_path, "run", "--resume", "run", "-n", "3")
    assert resumed.code == 0, resumed.stderr
    assert re.search(r"resumed at step \d+ from step-\d+-g1, written by 2 workers", resumed.stdout)
    assert_each_sample_once(result(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("to", ["the launcher", "every process"])
def test_sigterm_finishes_the_step_saves_and_exits_with_its_own_code(to: str, tmp_path: Path) -> None:
    """Batch systems and service managers send it to every process of a job."""
    write_script(tmp_path, pause=0.02)
    with started(tmp_path, "run", "-n", "2", "--run-dir", "run", "script.py") as process:
        limit = time.monotonic() + PATIENCE
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not metrics.exists() or metrics.stat().st_size == 0:
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.01)
        launcher = psutil.Process(process.pid)
        for each in [launcher, *(launcher.children(recursive=True) if to == "every process" else [])]:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has heard of the stop, and was quick
                each.terminate()
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, stdout + stderr
    assert "stopped by SIGTERM" in stderr
    assert len(published(tmp_path)) == 1
    resumed = shoal(tmp_path, "run", "--resume", "run")
    assert resumed.code == 0, resumed.stderr
    found = result(tmp_path)
    assert_each_sample_once(found)
