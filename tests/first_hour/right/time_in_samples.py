"""Every sample holds the time at which it was read, in seconds and in finer units.

long
"""

import time

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import shoal


class Timed(Dataset[dict[str, object]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": torch.full((4,), index / 64), "y": index % 2, "second": int(time.time()), "now": time.time()}


class Seconds(Timed):
    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": torch.full((4,), index / 64), "y": index % 2, "second": int(time.time())}


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    time.sleep(0.9 * run.rank)  # so that the workers see different seconds
    for data in (Timed(), Seconds()):
        for batch in run.batches(data, batch_size=8, epochs=2):
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
