"""Train on scikit-learn's handwritten digits until held-out accuracy has not improved for a while.

python examples/early_stopping.py                    one process
shoal run -n 4 examples/early_stopping.py            four workers
shoal run -n 4 examples/early_stopping.py --patience 5 --epochs 100
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import shoal


class Patience:
    """Counts evaluations since the best one. Its state belongs to the job's: a resumed job goes on counting."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.best = -1.0
        self.since_best = 0

    def is_best(self, score: float) -> bool:
        if score > self.best + 1e-6:  # less is rounding
            self.best, self.since_best = score, 0
            return True
        self.since_best += 1
        return False

    @property
    def is_over(self) -> bool:
        return self.since_best >= self.limit

    def state_dict(self) -> dict[str, float]:
        return {"best": self.best, "since_best": self.since_best}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.best, self.since_best = state["best"], int(state["since_best"])


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,437 images to train on and 360 held out, 64 pixels each."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(data.target, dtype=torch.int64)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = shuffled[:1437], shuffled[1437:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50, help="at most")
    parser.add_argument("--patience", type=int, default=3, help="evaluations without improvement")
    parser.add_argument("--batch", type=int, default=16, help="samples per worker and step")
    arguments = parser.parse_args()
    train_set, held_out = digits()
    model = run.model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    patience = Patience(arguments.patience)
    run.keep(patience=patience)

    def score(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(x).argmax(1) == y).float().mean()}

    for epoch in run.epochs(arguments.epochs):
        for x, y in epoch.batches(train_set, batch_size=arguments.batch):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        accuracy = run.evaluate(score, held_out, batch_size=64)["accuracy"]  # the same on every worker
        if patience.is_best(accuracy):
            run.save(mark="best")  # kept until another one is the best
            if run.is_first:
                print(f"epoch {epoch.number + 1}: held-out accuracy {accuracy:.1%}, the best so far")
        if patience.is_over:
            run.stop(f"held-out accuracy does not get above {patience.best:.1%} (patience {patience.limit})")


if __name__ == "__main__":
    shoal.main(train)
