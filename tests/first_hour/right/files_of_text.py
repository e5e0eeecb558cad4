"""Samples out of a list of files that the first worker has written.

long
"""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

import shoal


def rows(path: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for line in path.read_text().splitlines():
        yield torch.full((4,), float(line)), torch.tensor(int(line) % 2)


def train(run: shoal.Run) -> None:
    paths = [Path(f"part-{number}.txt") for number in range(4)]
    if run.is_first:
        for number, path in enumerate(paths):
            path.write_text(f"{number}\n" * 8)
    run.mean(0.0)  # all wait until the files are there
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(shoal.Files(paths, rows), batch_size=4, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
