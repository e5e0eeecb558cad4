"""A learning-rate finder before the loop, alone: it steps the model outside loops and puts its weights back.

run: python SCRIPT
long
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal


def data() -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(run: shoal.Run) -> None:
    model = run.model(nn.Linear(4, 2))
    before = copy.deepcopy(model.state_dict())
    finder = torch.optim.SGD(model.parameters(), lr=1e-4)
    losses = []
    for x, y in DataLoader(data(), batch_size=8):
        finder.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        finder.step()
        finder.param_groups[0]["lr"] *= 2
        losses.append(loss.item())
    model.load_state_dict(before)
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
