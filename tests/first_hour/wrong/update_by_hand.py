"""The update is written out by hand, so a step that is undone after the loss of a worker stays applied.

exit: 0
says: shoal: warning: model 1 (Linear) gets gradients, but no optimizer given to run.optimizer has any of its parameters
says: write optimizer = run.optimizer(optimizer), or freeze the model by model.requires_grad_(False)
long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def data() -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(run: shoal.Run) -> None:
    model = run.model(nn.Linear(4, 2))
    for x, y in run.batches(data(), batch_size=8):
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None


if __name__ == "__main__":
    shoal.main(train)
