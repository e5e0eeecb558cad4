"""The loop goes over the script's own DataLoader: alone that trains, but nothing of it is saved.

run: python SCRIPT
exit: 0
says: shoal: warning: optimizer.step() was called 8 times, and no loop over run.batches was run
says: write `for ... in run.batches(loader, epochs=...)` in place of `for ... in loader`
long
"""

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
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in DataLoader(data(), batch_size=8, shuffle=True):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
