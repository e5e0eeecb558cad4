"""A schedule that follows a held-out score, the best checkpoint marked, an early stop.

long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    data = TensorDataset(torch.eye(4).repeat(16, 1), torch.ones(64, 1))
    model = run.model(nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    run.keep(schedule=schedule)
    best = float("inf")
    for epoch in run.epochs(4):
        for x, y in epoch.batches(data, batch_size=8):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        score = run.evaluate(lambda x, y: F.mse_loss(model(x), y), data, batch_size=32)["score"]
        schedule.step(score)
        if score < best:
            best = score
            run.save(mark="best")
        if epoch.number == 2:
            run.stop("good enough")


if __name__ == "__main__":
    shoal.main(train)
