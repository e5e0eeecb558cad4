"""Perturbations of the input are found by an optimizer of their own, and the model is trained on them.

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
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(data(), batch_size=8):
        shift = nn.Parameter(torch.zeros_like(x))
        attack = torch.optim.SGD([shift], lr=0.5)
        for _ in range(2):
            attack.zero_grad()
            (shift.grad,) = torch.autograd.grad(-F.cross_entropy(model(x + shift), y), [shift])
            attack.step()
        optimizer.zero_grad()
        F.cross_entropy(model(x + shift.detach()), y).backward()
        optimizer.step()


if __name__ == "__main__":
    shoal.main(train)
