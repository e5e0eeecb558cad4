"""A worker skips a batch before backward(), as scripts do where a loss is nan, and the others do not.

says: worker 1 took no backward() in step 3 and worker 0 did; skip a batch on every worker or on none
says: decide by a value that all workers share, such as run.mean(loss)
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
        if step == 3 and run.rank == 1:  # stands for `if loss.isnan()`
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
