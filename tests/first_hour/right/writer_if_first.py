"""The first worker hands what is logged to a writer with a file of its own.

long
"""

import csv

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import shoal


class Table:
    """As small as a writer can be: a function of a step and values."""

    def __init__(self, path: str) -> None:
        with open(path, "w", newline="") as file:  # noqa: PTH123
            csv.writer(file).writerow(["step", "loss"])
        self.path = path

    def __call__(self, step: int, values: dict[str, float]) -> None:
        with open(self.path, "a", newline="") as file:  # noqa: PTH123
            csv.writer(file).writerow([step, values.get("loss")])


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    if run.is_first:
        run.log_to(Table("losses.csv"))
    for inputs, targets in run.batches(TensorDataset(x, y), batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)


if __name__ == "__main__":
    shoal.main(train)
