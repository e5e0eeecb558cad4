"""The script of the README: a model, an optimizer, a loop over batches."""

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(TensorDataset(x, y), batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)


if __name__ == "__main__":
    shoal.main(train)
