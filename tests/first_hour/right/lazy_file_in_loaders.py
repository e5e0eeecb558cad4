"""A data set opens its file with its first sample, as it must be with loader processes.

long
"""

import struct
from pathlib import Path
from typing import BinaryIO

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import shoal


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO | None = None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.file is None:
            self.file = self.path.open("rb")  # processes that share a file share its position
        self.file.seek(8 * index)
        (number,) = struct.unpack("<d", self.file.read(8))
        assert number == index
        return torch.full((4,), number / 64), torch.tensor(index % 2)


def train(run: shoal.Run) -> None:
    path = Path(f"rows-{run.rank}.bin")
    path.write_bytes(struct.pack("<64d", *range(64)))
    loader = DataLoader(Rows(path), batch_size=8, shuffle=True, num_workers=2)
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(loader, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loader.dataset.file is None


if __name__ == "__main__":
    shoal.main(train)
