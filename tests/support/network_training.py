"""Run as a worker of a job: a model whose parameter i counts the uses of sample i, trained slowly on purpose.

Prints "step N" once in a while, and in the end "exact" or what was counted. Its own log, `steps-WORKER` in the current
folder, has a line for every step that it applied: when, in which generation, which one. With the variable FULL_UP_TO,
meshes of more ranks begin with some connections only.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.transport.mesh import first_peers

SAMPLES = 240
EPOCHS = int(os.environ.get("EPOCHS", "4"))
BATCH = 4
first_peers.FULL_UP_TO = int(os.environ.get("FULL_UP_TO", str(first_peers.FULL_UP_TO)))
LOG = Path(f"steps-{os.environ.get('SHOAL_WORKER')}")


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return -self.uses[index].sum() / len(index)


def train(run: shoal.Run) -> None:
    model = run.model(Uses())
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    for (index,) in run.batches(TensorDataset(torch.arange(SAMPLES)), batch_size=BATCH, epochs=EPOCHS):
        time.sleep(0.05)
        model(index).backward()
        # The gradient is -1 over the step's samples for each use: with that many, SGD adds one.
        model.uses.grad.mul_(run._session.iteration.step_samples)  # type: ignore[union-attr]  after backward it has one
        optimizer.step()
        optimizer.zero_grad()
        if run.applied:
            with LOG.open("a") as log:
                log.write(f"{time.monotonic()} {run._session.peers.generation.number} {run.step + 1}\n")
            if run.step % 5 == 0:
                say(f"step {run.step}")
    counts = sorted({int(count) for count in model.uses.detach().round()})
    say("exact" if counts == [EPOCHS] else f"counted {counts}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    shoal.main(train)
