"""Each worker chooses a batch size of its own, as for machines with GPUs of different sizes.

exit: 4
says: batch size is 8 on worker 0 and 4 on worker 1
says: start every worker with the same script and arguments, and let no such value depend on run.rank
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
    for x, y in run.batches(data, batch_size=8 if run.is_first else 4):
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
