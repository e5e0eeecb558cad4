"""The first worker writes what it logs for TensorBoard too.

long
"""

import torch
from torch.utils.data import TensorDataset
from torch.utils.tensorboard import SummaryWriter

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    if run.is_first:
        run.log_to(SummaryWriter("board"))
    for (inputs,) in run.batches(TensorDataset(x), batch_size=8, epochs=2):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)


if __name__ == "__main__":
    shoal.main(train)
