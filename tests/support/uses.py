"""A model that counts how often each sample was used, for tests that lose workers."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Uses(nn.Module):
    """Parameter i counts the uses of sample i; beside it something that really trains, and a buffer."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(samples))
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1.0
        return ((x @ self.weight) ** 2).mean() - self.uses[index].sum() / len(index)


def numbered(samples: int) -> TensorDataset:
    """Each sample with its number."""
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(torch.arange(samples), x)
