"""A warm-up, accumulated batches; before the loop a check of gradients, and a step without any.

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
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), clip_norm=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    run.keep(schedule=schedule)
    x, y = data()[:4]
    F.cross_entropy(model(x), y).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer.zero_grad()
    optimizer.step()
    for x, y in run.batches(data(), batch_size=4, accumulate=2, epochs=2):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.applied:
            schedule.step()


if __name__ == "__main__":
    shoal.main(train)
