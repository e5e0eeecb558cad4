"""All workers keep what they have prepared in a cache, and a data set keeps its samples in a folder.

long
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import shoal


class Kept(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = Path("prepared") / f"{index}.txt"
        if not path.exists():
            path.write_text(str(index / 32))
        return torch.full((4,), index / 32), torch.tensor(index % 2)


def train(run: shoal.Run) -> None:
    for folder in ("prepared", ".cache"):
        Path(folder).mkdir(exist_ok=True)
    torch.save(torch.zeros(4), ".cache/vocabulary.pt")
    Path(".cache/words.txt").write_text("a b c")
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(Kept(), batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
