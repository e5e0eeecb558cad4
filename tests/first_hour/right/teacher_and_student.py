"""A teacher that gives targets without gradients, trained in a loop before; temperature is fitted behind the loops.

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


def fit(run: shoal.Run, model: nn.Module, teacher: nn.Module | None) -> None:
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(data(), batch_size=8):
        loss = F.cross_entropy(model(x), y)
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher(x).softmax(dim=1)
            loss = loss + F.cross_entropy(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train(run: shoal.Run) -> None:
    teacher = run.model(nn.Linear(4, 2))
    fit(run, teacher, None)
    student = run.model(nn.Linear(4, 2))
    fit(run, student, teacher)
    x, y = data().tensors
    scores = student(x).detach()
    temperature = nn.Parameter(torch.ones(1))
    calibration = torch.optim.LBFGS([temperature], max_iter=5)

    def closure() -> torch.Tensor:
        calibration.zero_grad()
        loss = F.cross_entropy(scores / temperature, y)
        loss.backward()
        return loss

    calibration.step(closure)


if __name__ == "__main__":
    shoal.main(train)
