"""Two running averages of the weights: a copy kept by hand and torch's AveragedModel.

long
"""

import copy

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
    ema = copy.deepcopy(model).requires_grad_(False)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    run.keep(ema=ema, averaged=averaged)
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, value in zip(ema.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.1)
        averaged.update_parameters(model)


if __name__ == "__main__":
    shoal.main(train)
