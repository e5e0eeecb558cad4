"""Each worker gives `shoal.main` a seed of its own, as scripts do that call `torch.manual_seed(seed + rank)`.

exit: 4
says: shoal.main 1: seed is 40 on worker 0 and 41 on worker 1; start every worker with the same script and arguments
long
"""

import os

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import shoal

digits = TensorDataset(torch.arange(64.0).reshape(16, 4) / 64, torch.arange(16) % 2)


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(digits, batch_size=4):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train, seed=40 + int(os.environ.get("RANK", "0")))
