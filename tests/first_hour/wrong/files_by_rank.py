"""Each worker is given every other file.

says: loop 1: list of files is part-0.txt, part-2.txt on worker 0 and part-1.txt, part-3.txt on worker 1
says: every worker must be given the whole data set
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
    for number, path in enumerate(paths):
        with path.open("a") as file:
            file.write(f"{number}\n" * 8)
    run.mean(0.0)  # all have written
    mine = shoal.Files(paths[run.rank :: run.world_size], rows)
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(mine, batch_size=4):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
