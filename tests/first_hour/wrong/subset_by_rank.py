"""Each worker takes every other sample, as DDP scripts do by hand: half of the samples would be trained on.

says: loop 1: sample 0 of the data differs between worker 0 and worker 1; every worker must be given the whole data set
says: say run.batches(..., own_data=True)
"""

import torch
import torch.nn.functional as F
from torch.utils.data import Subset, TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    mine = Subset(TensorDataset(x, y), range(run.rank, 64, run.world_size))
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(mine, batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
