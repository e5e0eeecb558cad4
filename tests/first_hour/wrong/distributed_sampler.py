"""The DataLoader of a DDP script, with its DistributedSampler.

says: the DataLoader has a DistributedSampler, which splits the data by rank, but run.batches deals the samples out
says: leave the sampler out and give the DataLoader shuffle=True
long
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, num_replicas=run.world_size, rank=run.rank)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(loader, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
