"""A DataLoader draws its samples by weight: the sampler's choice would be lost.

says: the DataLoader has a WeightedRandomSampler of its own, but Shoal deals the samples out; use shuffle=True or False
long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import shoal


def train(run: shoal.Run) -> None:
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    sampler = WeightedRandomSampler([1.0] * 32 + [2.0] * 32, num_samples=64)
    model = run.model(nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(DataLoader(data, batch_size=8, sampler=sampler)):
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
