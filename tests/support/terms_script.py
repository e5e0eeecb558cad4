"""A script whose terms are arguments, so that a joiner may come with others. Parameter i counts the uses of sample i.

The job goes through a first loop and an evaluation, and then through the loop that joiners find it in: from step
`--gate` on its workers say by a file that they are there, and wait for the file `open`. The first worker writes how
often samples were used.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal

MOST = 512  # samples that the model has a counter for, whatever the data set has


class Uses(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(MOST, dtype=torch.float64))
        self.layer = nn.Linear(4, width)

    def forward(self, index: torch.Tensor, x: torch.Tensor, step_samples: int) -> torch.Tensor:
        """The mean over a batch of n is weighted by n over all samples of the step: -1 for each use."""
        return self.layer(x).pow(2).mean() - self.uses[index].mean() * step_samples


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--first-batch", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--gate", type=int, default=0)
    return parser.parse_args()


def train(run: shoal.Run) -> None:
    options = arguments()
    model = run.model(Uses(options.width))
    counting = run.optimizer(torch.optim.SGD([model.uses], lr=1.0))
    kind = getattr(torch.optim, options.optimizer)
    training = run.optimizer(kind(model.layer.parameters(), lr=0.01, weight_decay=options.weight_decay))

    def step(index: torch.Tensor, rows: torch.Tensor) -> None:
        iteration = run._session.iteration
        assert iteration is not None
        model(index, rows, iteration.step_samples).backward()
        for optimizer in (counting, training):
            optimizer.step()
            optimizer.zero_grad()

    data = TensorDataset(torch.arange(options.samples), torch.ones(options.samples, 4))
    for index, rows in run.batches(data, batch_size=options.first_batch):
        step(index, rows)
    run.evaluate(lambda _, rows: rows.mean(), data, 16)
    limit = {"epochs": options.epochs} if options.epochs is not None else {}
    limit |= {"steps": options.steps} if options.steps is not None else {}
    for index, rows in run.batches(data, batch_size=options.batch, accumulate=options.accumulate, **limit):
        step(index, rows)
        while options.gate and run.step >= options.gate and not Path("open").exists():
            Path(f"worker-{run._session.peers.worker}-waits").touch()
            time.sleep(0.01)
    if run.is_first:
        uses = model.uses.detach()[: options.samples]
        found = {"least": uses.min().item(), "most": uses.max().item(), "total": uses.sum().item()}
        Path("result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    shoal.main(train)
