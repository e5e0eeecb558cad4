"""After a loop over run.batches, a second stage trains another model in a loop over the script's own DataLoader.

exit: 0
says: shoal: warning: Adam.step() was called 100 times outside loops over run.batches
says: write model = run.model(model) and optimizer = run.optimizer(optimizer), and loop by `for ... in run.batches(
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
    body = run.model(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))
    optimizer = run.optimizer(torch.optim.Adam(body.parameters()))
    for x, _ in run.batches(data(), batch_size=8):
        F.mse_loss(body(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
    head = nn.Linear(8, 2)
    head_optimizer = torch.optim.Adam(head.parameters())
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    for _ in range(20):
        for x, y in loader:
            head_optimizer.zero_grad()
            F.cross_entropy(head(body[:2](x).detach()), y).backward()
            head_optimizer.step()


if __name__ == "__main__":
    shoal.main(train)
