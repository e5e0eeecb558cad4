"""Validation data are split off with a seeded generator, and inside the function, where every worker draws the same.

long
"""

import torch
import torch.nn.functional as F
from torch.utils.data import Subset, TensorDataset, random_split

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    data = TensorDataset(x, y)
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for generator in (None, torch.Generator().manual_seed(3)):
        training, validation = random_split(data, [48, 16], generator=generator)
        for inputs, targets in run.batches(training, batch_size=8, epochs=2):
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        run.evaluate(lambda inputs, targets: F.cross_entropy(model(inputs), targets), validation, 8)
    for inputs, targets in run.batches(Subset(data, range(0, 64, 2)), batch_size=8):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
