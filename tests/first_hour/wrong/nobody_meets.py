"""The whole function runs once per worker, and no call of run brings the workers together.

says: train has returned without a call of run that workers meet in
says: use run.model, run.optimizer and run.batches
long
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import shoal


def data() -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(run: shoal.Run) -> None:
    weight = torch.zeros(4, requires_grad=True)
    for x, y in DataLoader(data(), batch_size=8):
        F.binary_cross_entropy_with_logits(x @ weight, y.float()).backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None
    if run.is_first:
        print("weights", weight.tolist())


if __name__ == "__main__":
    shoal.main(train)
