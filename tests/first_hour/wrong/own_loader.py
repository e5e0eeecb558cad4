"""Model and optimizer are handed over, but the loop still goes over the script's own DataLoader.

says: SGD.step() was called outside a loop over run.batches, so each of the 2 workers trains a model of its own
says: write `for ... in run.batches(loader, epochs=...)` in place of `for ... in loader`
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
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    shoal.main(train)
