"""A small model is fitted on every worker on the way to `shoal.main`, and another one after it.

long
"""

import torch

import shoal


def fit(steps: int) -> float:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.LBFGS([weight], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight - 3).square().sum()
        loss.backward()
        return loss.detach()

    for _ in range(steps):
        optimizer.step(closure)
    return weight.item()


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=scale / 100))
    for (x,) in run.batches(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=8):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    scale = fit(5)
    shoal.main(train)
    fit(3)
