"""The script of the benchmark's jobs: a small model, and sleeping in place of computing."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--slow", type=int, default=0, help="workers that are slow: those with the lowest ranks")
    parser.add_argument("--pause", type=float, required=True)
    parser.add_argument("--slower", type=int, required=True)
    parser.add_argument("--times", type=Path, required=True)
    options = parser.parse_args()
    rank = run.rank
    pause = options.pause * (options.slower if rank < options.slow else 1)
    model = run.model(nn.Linear(256, 256))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    data = TensorDataset(torch.ones(options.batches, 256))
    times = []
    for (x,) in run.batches(data, batch_size=1):
        time.sleep(pause)
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.time())
    (options.times / f"times-{rank}").write_text("\n".join(map(str, times)))


if __name__ == "__main__":
    shoal.main(train)
