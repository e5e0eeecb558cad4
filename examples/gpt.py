"""Train a small GPT, byte by byte, on the source of Python's standard library, and let it write a few lines.

python examples/gpt.py --steps 200                      one process
shoal run -n 2 examples/gpt.py --steps 200              two workers
shoal run -n 2 examples/gpt.py --width 256 --layers 6   a larger one
shoal run -n 2 examples/gpt.py --rounds 5 --steps 60    the held-out loss after every 60 steps
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import shoal


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + torch.as_tensor(self.mlp(self.before_mlp(x)))


class GPT(nn.Module):
    def __init__(self, *, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads=max(1, width // 32)) for _ in range(layers)))
        self.last_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.bytes.weight  # tied
        nn.init.normal_(self.bytes.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return torch.as_tensor(self.head(self.last_norm(self.blocks(x))))

    @torch.no_grad()
    def write(self, start: bytes, count: int) -> str:
        tokens = torch.tensor([list(start)], device=self.bytes.weight.device)
        for _ in range(count):
            odds = self(tokens[:, -self.context :])[0, -1].softmax(0)
            tokens = torch.cat([tokens, torch.multinomial(odds, 1)[None]], dim=1)
        return bytes(tokens[0].tolist()).decode("utf-8", errors="replace")


class Windows(Dataset[torch.Tensor]):
    """Every window of context + 1 bytes that starts at a multiple of the context."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self.context
        return self.text[start : start + self.context + 1].long()


def library_source(limit: int) -> bytes:
    """The standard library's own modules, in alphabetical order, up to a number of bytes."""
    text = b""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return text[:limit]


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8, help="windows per worker and step")
    parser.add_argument("--steps", type=int, default=300, help="per round, at most one pass over the source")
    parser.add_argument("--rounds", type=int, default=1, help="how often to train and then look at the held-out loss")
    parser.add_argument("--bytes", type=int, default=4_000_000, help="how much source to read")
    arguments = parser.parse_args()

    text = library_source(arguments.bytes)
    split = len(text) * 19 // 20
    windows, held_out = Windows(text[:split], arguments.context), Windows(text[split:], arguments.context)
    model = run.model(lambda: GPT(width=arguments.width, layers=arguments.layers, context=arguments.context))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), clip_norm=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=arguments.rounds * arguments.steps)
    run.keep(schedule=schedule)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    for round_ in run.epochs(arguments.rounds):
        for batch in round_.batches(windows, batch_size=arguments.batch, steps=arguments.steps):
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        scores = run.evaluate(lambda batch: {"loss": loss_of(batch)}, held_out, batch_size=16)
        if run.is_first:
            print(f"held-out loss {scores['loss']:.3f} nats per byte after {run.step} steps")
    if run.is_first:
        print(model.eval().write(b"def ", 200))


if __name__ == "__main__":
    shoal.main(train)
