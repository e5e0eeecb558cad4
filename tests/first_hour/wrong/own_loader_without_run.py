"""A plain training function was put into shoal.main, with a DistributedSampler and without a call of run.

says: AdamW.step() was called before anything was given to run, so each of the 2 workers trains a model of its own
says: write model = run.model(model) and optimizer = run.optimizer(optimizer)
long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import shoal


def data() -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(run: shoal.Run) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = DistributedSampler(data(), num_replicas=run.world_size, rank=run.rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data(), batch_size=8, sampler=sampler):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    shoal.main(train)
