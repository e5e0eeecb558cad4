"""Early stopping by `break` on a loss that differs between workers: only some of them leave the loop.

exit: 4
says: to end it early, use run.stop
long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = run.model(nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step, (x, y) in enumerate(run.batches(data, batch_size=4)):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3 and run.rank == 1:  # stands for a threshold that one worker's own loss crosses
            break


if __name__ == "__main__":
    shoal.main(train)
