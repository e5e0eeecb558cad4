"""A frozen backbone, a head with an optimizer of its own, weight decay for a part of the parameters.

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
    backbone = run.model(nn.Sequential(nn.Linear(4, 8), nn.ReLU()).requires_grad_(False))
    model = run.model(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    groups = [{"params": model[1].parameters(), "weight_decay": 0.0}, {"params": model[2].parameters()}]
    optimizer = run.optimizer(torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1))
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(backbone(x)), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
