"""What the jobs of a campaign run: a model whose parameter i counts the uses of sample i, trained slowly on purpose.

Every process writes what it did into a diary of its own (`support.truth` reads it), whoever else knows of it.
The first worker writes the result at the script's end, slowly, so that there is time to kill it there. Joiners that
differ are given other numbers than the job's.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal

SAMPLES, EPOCHS = 203, 4


class Net(nn.Module):
    def __init__(self, samples: int, width: int) -> None:
        super().__init__()
        self.uses = nn.Embedding(samples, 1, dtype=torch.float64)
        self.layers = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 4))
        nn.init.zeros_(self.uses.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(x)
        return logits


def data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 6, generator=generator)
    return TensorDataset(torch.arange(samples), x, torch.randint(4, (samples,), generator=generator))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--pause", type=float, default=0.12)
    parser.add_argument("--tail", type=float, default=0.0)
    return parser.parse_args()


def train(run: shoal.Run) -> None:
    given = options()
    model = run.model(Net(given.samples, given.width))
    optimizer = run.optimizer(getattr(torch.optim, given.optimizer)(model.layers.parameters(), lr=0.01))
    counting = run.optimizer(torch.optim.SGD(model.uses.parameters(), lr=1.0))
    session: Any = run._session
    with Path(f"diary-{os.getpid()}.jsonl").open("a", buffering=1) as diary:
        for epoch in run.epochs(given.epochs):
            for index, x, y in epoch.batches(data(given.samples), batch_size=given.batch):
                # The mean over a batch of n is weighted by n over all samples of the step: -1 for each use.
                uses = -model.uses(index).mean() * session.iteration.step_samples
                (F.cross_entropy(model(x), y) + uses).backward()
                optimizer.step()
                counting.step()
                optimizer.zero_grad()
                counting.zero_grad()
                run.log(loss=1.0)
                said = {"time": time.time(), "counts": bool(run.applied), "step": run.step + 1}
                said |= {"generation": session.peers.generation.number, "worker": session.peers.worker}
                said |= {"samples": len(index) if session.iteration.samples else 0}
                diary.write(json.dumps(said) + "\n")
                time.sleep(given.pause)
    if run.is_first:
        with Path("tails").open("a") as tails:
            tails.write(f"{os.getpid()}\n")
        time.sleep(given.tail)
        off = (model.uses.weight.detach() - given.epochs).abs().max().item()
        part = Path(f"result-{os.getpid()}")
        part.write_text(json.dumps({"off": off, "steps": run.step}))
        part.replace("result.json")


if __name__ == "__main__":
    shoal.main(train)
