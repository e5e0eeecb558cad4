"""The head's optimizer was added later and is not given to run.optimizer; the script is tried alone first.

run: python SCRIPT
says: SGD.step() changes model 1, which was given to run.model, but this optimizer was not given to run.optimizer
says: write optimizer = run.optimizer(SGD(...))
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


def train(run: shoal.Run) -> None:
    model = run.model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    body = run.optimizer(torch.optim.Adam(model[0].parameters()))
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(x), y).backward()
        for optimizer in (body, head):
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
