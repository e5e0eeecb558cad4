"""A stream gives each worker every other sample; of those, each worker would use every other one.

says: loop 1: sample 0 of the data differs between worker 0 and worker 1; every worker must be given the whole data set
long
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch.utils.data import IterableDataset

import shoal


class Lines(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(self.rank, 64, self.world_size):
            yield torch.full((4,), number / 64), torch.tensor(number % 2)


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(Lines(run.rank, run.world_size), batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
