"""The optimizer of a model of run.model is not given to run.optimizer.

says: Adam.step() changes model 1, which was given to run.model, but this optimizer was not given to run.optimizer
says: write optimizer = run.optimizer(Adam(...))
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
    model = run.model(nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
