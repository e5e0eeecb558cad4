"""Samples are augmented: with torch's, Python's and numpy's generators, and with one of the data set's own."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import shoal


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, own: np.random.Generator | None) -> None:
        self.own = own

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.randn(4) + random.random() + np.random.rand()
        if self.own is not None:
            noise += self.own.random()
        return torch.full((4,), index / 64) + 0.01 * noise, torch.tensor(index % 2)


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for own in (None, np.random.default_rng()):
        for inputs, targets in run.batches(Augmented(own), batch_size=8, epochs=2):
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
