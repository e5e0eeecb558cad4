"""Rank 0 alone evaluates the trained model; the others' scripts have come to their ends.

run: -n 2 --checkpoint-every never SCRIPT
says: worker 0 called run.evaluate and worker 1 did not; every worker must
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

    def accuracy(x: torch.Tensor, y: torch.Tensor) -> float:
        return (model(x).argmax(dim=1) == y).float().mean().item()

    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    if run.is_first:
        print("accuracy", run.evaluate(accuracy, data(), batch_size=16))


if __name__ == "__main__":
    shoal.main(train)
