"""Every worker evaluates its own part of the validation data, so that a part of the parts is scored.

says: run.evaluate at step 8: sample 0 of the data differs between worker 0 and worker 1
says: say run.evaluate(..., own_data=True)
long
"""

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    half = slice(run.rank, None, run.world_size)
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(TensorDataset(x, y), batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.evaluate(lambda inputs, targets: F.cross_entropy(model(inputs), targets), TensorDataset(x[half], y[half]), 8)


if __name__ == "__main__":
    shoal.main(train)
