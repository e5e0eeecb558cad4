"""Gradients are clipped by hand where they have already left for the servers.

run: -n 2 --strategy parameter-server --servers 1 SCRIPT
says: was changed after backward(), when it had left for the servers; to clip, write run.optimizer(..., clip_norm=...)
long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = run.model(nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(data, batch_size=8):
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
