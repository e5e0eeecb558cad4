"""Inner loops on copies of the model: one made anew for each batch, one that is reset to the model's weights.

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
    optimizer = run.optimizer(torch.optim.Adam(model.parameters()))
    reset = nn.Linear(4, 2)
    reset_optimizer = torch.optim.SGD(reset.parameters(), lr=0.1)
    for x, y in run.batches(data(), batch_size=8, epochs=2):
        copied = copy.deepcopy(model)
        reset.load_state_dict(model.state_dict())
        for inner, inner_optimizer in (
            (copied, torch.optim.SGD(copied.parameters(), lr=0.1)),
            (reset, reset_optimizer),
        ):
            for _ in range(2):
                inner_optimizer.zero_grad()
                F.cross_entropy(inner(x), y).backward()
                inner_optimizer.step()
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + F.mse_loss(model(x), copied(x).detach() + reset(x).detach())).backward()
        optimizer.step()


if __name__ == "__main__":
    shoal.main(train)
