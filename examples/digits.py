"""Train a classifier on scikit-learn's handwritten digits and print held-out accuracy after every epoch.

python examples/digits.py                    one process
shoal run -n 4 examples/digits.py            four workers
shoal run -n 4 examples/digits.py --epochs 2 --batch 8 --save digits.pt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import shoal


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 16, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(x)
        return logits


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,437 images to train on and 360 held out, 8 by 8 pixels each."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(data.target, dtype=torch.int64)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = shuffled[:1437], shuffled[1437:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8, help="samples per worker and step")
    parser.add_argument("--save", type=Path, help="file for the trained weights")
    arguments = parser.parse_args()
    train_set, held_out = digits()
    model = run.model(Net())
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))

    def score(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = model(x)
        return {"accuracy": (logits.argmax(1) == y).float().mean(), "loss": F.cross_entropy(logits, y)}

    for epoch in run.epochs(arguments.epochs):
        for x, y in epoch.batches(train_set, batch_size=arguments.batch):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        scores = run.evaluate(score, held_out, batch_size=64)
        if run.is_first:
            print(f"epoch {epoch.number + 1}: held-out accuracy {scores['accuracy']:.1%}")
    # If the worker that saves is killed here, another one does it again: exit code 0 means that the file is there.
    if run.is_first and arguments.save:
        aside = arguments.save.with_suffix(".part")
        torch.save(model.state_dict(), aside)
        aside.replace(arguments.save)  # whole or not at all


if __name__ == "__main__":
    shoal.main(train)
