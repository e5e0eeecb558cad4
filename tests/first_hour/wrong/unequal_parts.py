"""The data are split by rank, and do not come out even.

says: loop 1: number of samples is 33 on worker 0 and 32 on worker 1; every worker must be given the whole data set
long
"""

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(65, 4, generator=torch.Generator().manual_seed(1))[run.rank :: run.world_size]
    y = (x.sum(dim=1) > 0).long()
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(TensorDataset(x, y), batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
