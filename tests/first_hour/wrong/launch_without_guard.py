"""A program calls shoal.launch at its top level, so that every worker that imports it would start a job too.

run: python SCRIPT
says: shoal.launch is called in worker 0 of a job, which would start a job in every worker
says: put the call under `if __name__ == "__main__":`
long
"""

import sys

import torch
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


result = shoal.launch(train, workers=1)
sys.exit(result.exit_code)
