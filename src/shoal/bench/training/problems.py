"""What `shoal bench training` trains: models with their data, loss and optimizer, made anew for each method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES = 4096


@dataclass(frozen=True)
class Problem:
    model: nn.Module
    data: TensorDataset
    batch: int  # per worker
    loss: Callable[[nn.Module, list[torch.Tensor]], torch.Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    clip_norm: float | None = None


def mlp() -> Problem:
    """25.2 million parameters: wide layers, so that the exchange weighs as much as the computation."""
    width = 2048
    wide = [module for _ in range(5) for module in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), *wide, nn.Linear(width, 1024))
    x = torch.randn(SAMPLES, 1024, generator=torch.Generator().manual_seed(0))
    return Problem(
        model,
        TensorDataset(x, x.roll(1, dims=1)),
        batch=16,
        loss=lambda net, batch: F.mse_loss(net(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + torch.as_tensor(self.mlp(self.norms[1](x)))


class GPT(nn.Module):
    """As in the example `gpt.py`, with its default sizes."""

    def __init__(self, *, width: int = 128, layers: int = 4, context: int = 128) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads=width // 32) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.bytes.weight  # tied
        nn.init.normal_(self.bytes.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return torch.as_tensor(self.head(self.norm(self.blocks(x))))


def gpt() -> Problem:
    """A small language model: many small tensors, much computation per byte exchanged."""
    tokens = torch.randint(0, 256, (SAMPLES, 129), generator=torch.Generator().manual_seed(0))

    def loss(net: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    return Problem(
        GPT(),
        TensorDataset(tokens),
        batch=8,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        clip_norm=1.0,
    )


PROBLEMS = {"mlp": mlp, "gpt": gpt}
