"""Each worker has data of its own, and says so.

long
"""

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(run.rank))
    y = (x.sum(dim=1) > 0).long()
    data = TensorDataset(x, y)
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(data, batch_size=8, epochs=2, own_data=True):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.evaluate(lambda inputs, targets: F.cross_entropy(model(inputs), targets), data, 8, own_data=True)


if __name__ == "__main__":
    shoal.main(train)
