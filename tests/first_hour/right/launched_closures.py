"""A program that launches a job for each learning rate, with functions that it makes on the way.

run: python SCRIPT
says: the best of 2
long
"""

from collections.abc import Callable

import torch
from torch.utils.data import TensorDataset

import shoal

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))


def training_with(rate: float) -> Callable[[shoal.Run], None]:
    def train(run: shoal.Run) -> None:
        torch.set_num_threads(1)
        model = run.model(torch.nn.Linear(4, 1))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=rate))
        for x, y in run.batches(data, batch_size=8):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)

    return train


if __name__ == "__main__":
    losses = {}
    for rate in (0.1, 0.01):
        result = shoal.launch(training_with(rate), workers=2).check()
        losses[rate] = result.metrics["loss"].values[-1]
    print(f"the best of {len(losses)}: {min(losses, key=lambda rate: losses[rate])}")
