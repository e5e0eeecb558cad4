"""A part of the model is wrapped in DataParallel, from the days of one machine with several GPUs.

run: python SCRIPT
says: run.model was given a model whose module 'body' is wrapped in DataParallel; hand over the plain module
long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def data() -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.DataParallel(nn.Linear(4, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())


def train(run: shoal.Run) -> None:
    model = run.model(Net())
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
