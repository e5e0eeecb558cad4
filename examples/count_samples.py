"""Train a classifier on handwritten digits with a model that counts how often each sample is used, and check the count.

python examples/count_samples.py                                             one process
shoal run -n 4 examples/count_samples.py                                     four workers
shoal run -n 4 --spares 1 --chaos "kill worker at step 100" examples/count_samples.py --pause 0.03

The count is part of the model: parameter i grows by one for every use of sample i in an applied step. It ends at
exactly the number of epochs only if no sample was lost and none was used twice, whoever died or came in meanwhile.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import shoal


class CountingNet(nn.Module):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.uses = nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(x)
        return logits

    def count_step(self) -> None:
        """Turn the gradient of `uses` into uses: a loss is a mean, so each of a step's n samples has -1/n there."""
        if self.uses.grad is not None:
            self.uses.grad *= (self.uses.grad != 0).sum()


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,437 images with their numbers to train on and 360 held out, 64 pixels each."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(data.target, dtype=torch.int64)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = shuffled[:1437], shuffled[1437:]
    numbers = torch.arange(len(train))
    return TensorDataset(images[train], labels[train], numbers), TensorDataset(images[held_out], labels[held_out])


def verdict(uses: torch.Tensor, epochs: int) -> str:
    """Empty if every sample was used once per epoch; less than a millionth is rounding."""
    wrong = (uses - epochs).abs() > 1e-6
    if not wrong.any():
        return ""
    least, most = uses.min().item(), uses.max().item()
    return f"{int(wrong.sum()):,} of {len(uses):,} samples were not used {epochs} times, but from {least:g} to {most:g}"


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8, help="samples per worker and step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep in every step")
    arguments = parser.parse_args()
    train_set, held_out = digits()
    model = run.model(CountingNet(len(train_set)))
    groups = [{"params": model.layers.parameters(), "lr": 0.05, "momentum": 0.9}, {"params": [model.uses], "lr": 1.0}]
    optimizer = run.optimizer(torch.optim.SGD(groups))

    for x, y, numbers in run.batches(train_set, batch_size=arguments.batch, epochs=arguments.epochs):
        time.sleep(arguments.pause)
        loss = F.cross_entropy(model(x), y)
        (loss - model.uses[numbers].mean()).backward()
        model.count_step()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)

    def score(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(x).argmax(1) == y).float().mean()}

    accuracy = run.evaluate(score, held_out, batch_size=64)["accuracy"]
    if run.stopped:  # before its end, as by Ctrl-C: there is nothing to check yet
        return
    if wrong := verdict(model.uses.detach(), arguments.epochs):
        raise SystemExit(wrong)
    if run.is_first:
        print(f"held-out accuracy {accuracy:.1%}")
        print(f"{len(train_set):,} samples, each used exactly {arguments.epochs} times")


if __name__ == "__main__":
    shoal.main(train)
