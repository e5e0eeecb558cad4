"""Streams of three kinds: a data set that starts anew, one that draws by itself, and an iterator for one epoch.

long
"""

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch.utils.data import IterableDataset

import shoal

Row = tuple[torch.Tensor, torch.Tensor]


class Lines(IterableDataset[Row]):
    def __iter__(self) -> Iterator[Row]:
        return (row(number + random.random()) for number in range(64))


class Drawn(IterableDataset[Row]):
    def __iter__(self) -> Iterator[Row]:
        own = random.Random()
        return (row(own.random()) for _ in range(64))


def row(number: float) -> Row:
    return torch.full((4,), number / 64), torch.tensor(int(number) % 2)


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for data, epochs in ((Lines(), 2), (Drawn(), 2), (map(row, range(64)), 1)):
        for inputs, targets in run.batches(data, batch_size=8, epochs=epochs):
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for inputs, targets in run.batches(Lines(), batch_size=8, epochs=2, loaders=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
