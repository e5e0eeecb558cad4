"""A script whose model counts how often each sample was used, and some of its variants: for jobs with servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

SAMPLES, EPOCHS = 203, 3

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
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(32, 4)
        nn.init.zeros_(self.uses.weight)

    def forward(self, x):
        return self.last(self.drop(F.relu(self.first(x))))

def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(torch.arange(SAMPLES), x, torch.randint(4, (SAMPLES,), generator=generator))

def train(run):
    model = run.model(Net())
    weights = [p for name, p in model.named_parameters() if name != "uses.weight"]
    optimizer = run.optimizer(torch.optim.AdamW(weights, lr=0.01), CLIP)
    counting = run.optimizer(torch.optim.SGD([model.uses.weight], lr=1.0))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
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
            run.log(loss=1.0)
            time.sleep(PAUSE)
        scores.append(run.evaluate(lambda index, x, y: F.cross_entropy(model(x), y), data(), batch_size=20)["score"])
    if run.is_first:
        torch.save({"model": model.state_dict(), "scores": scores}, "result.pt")

if __name__ == "__main__":
    shoal.main(train)
"""


NESTED = """    for epoch in run.epochs(EPOCHS):
        for index, x, y in epoch.batches(data(), batch_size=4):
"""
ONE_LOOP = """    for _ in range(1):
        for index, x, y in run.batches(data(), batch_size=4, epochs=EPOCHS):
"""


def write(folder: Path, *, pause: float = 0.0, clip: str = "", one_loop: bool = False) -> None:
    text = SCRIPT.replace(NESTED, ONE_LOOP) if one_loop else SCRIPT
    text = text.replace("PAUSE", str(pause)).replace(", CLIP", f", {clip}" if clip else "")
    (folder / "script.py").write_text(text)


def result(folder: Path) -> dict[str, object]:
    found: dict[str, object] = torch.load(folder / "result.pt", weights_only=True)
    (folder / "result.pt").unlink()
    return found


def assert_each_sample_once(found: dict[str, object]) -> None:
    """In every epoch, whatever happened."""
    model = found["model"]
    assert isinstance(model, dict)
    assert model["uses.weight"].flatten().tolist() == pytest.approx([EPOCHS] * SAMPLES, abs=1e-9)


def events_of(run_dir: Path) -> list[dict[str, Any]]:
    """What the record of a job holds so far; the last line may be torn."""
    file = run_dir / "events.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line)["event"] for line in lines if line.endswith("\n")]
