"""What the first worker logs goes to Weights & Biases, without its service.

long
"""

import torch
import wandb
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    if run.is_first:
        run.log_to(wandb.init(mode="offline", project="first-hour", settings=wandb.Settings(silent=True)))
    for (inputs,) in run.batches(TensorDataset(x), batch_size=8, epochs=2):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
    if run.is_first:
        wandb.finish()


if __name__ == "__main__":
    shoal.main(train)
