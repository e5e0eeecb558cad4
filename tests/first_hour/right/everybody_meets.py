"""Evaluation, means and checkpoints in and behind loops, on every worker; rank 0 prints.

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
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def accuracy(x: torch.Tensor, y: torch.Tensor) -> float:
        return (model(x).argmax(dim=1) == y).float().mean().item()

    best = 0.0
    for epoch in run.epochs(2):
        for x, y in epoch.batches(data(), batch_size=4):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = run.mean(loss.item())
            if run.step % 4 == 3:
                run.evaluate(accuracy, data(), batch_size=16)
                run.save()
        score = run.evaluate(accuracy, data(), batch_size=16)["score"]
        if score >= best:
            best = score
            run.save(mark="best")
        if run.is_first:
            print(f"epoch {epoch.number}: loss {mean:.3f}, accuracy {score:.3f}")


if __name__ == "__main__":
    shoal.main(train)
