"""The head became a model of its own, and the optimizer still has the body's parameters only.

exit: 0
says: shoal: warning: model 2 (Linear) gets gradients, but no optimizer given to run.optimizer has any of its parameters
says: write optimizer = run.optimizer(optimizer), or freeze the model by model.requires_grad_(False)
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
    body = run.model(nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    head = run.model(nn.Linear(8, 2))
    optimizer = run.optimizer(torch.optim.SGD(body.parameters(), lr=0.1))
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
        body.zero_grad()
        head.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
