"""The batches come from run, but neither the model nor its optimizer was handed over.

says: SGD.step() trains parameters in a loop over run.batches
says: no model was given to run.model, so each of the 2 workers trains a model of its own
says: write model = run.model(model), and optimizer = run.optimizer(optimizer)
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
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
