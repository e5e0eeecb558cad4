"""The data set is sharded by rank, as scripts for Hugging Face data sets do.

says: loop 1: sample 0 of the data differs between worker 0 and worker 1; every worker must be given the whole data set
long
"""

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import shoal


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def shard(self, num_shards: int, index: int) -> "Rows":
        return Rows(self.x[index::num_shards])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], (self.x[index].sum() > 0).long()


def train(run: shoal.Run) -> None:
    rows = Rows(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
    rows = rows.shard(run.world_size, run.rank)
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in run.epochs(2):
        for inputs, targets in epoch.batches(rows, batch_size=8):
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
