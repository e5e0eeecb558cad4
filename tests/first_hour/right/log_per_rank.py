"""Each worker writes a log of its own, and all append to one; the first saves the model and the results.

long
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with open(f"log-{run.rank}.txt", "w") as log, open("all.txt", "a") as together:  # noqa: PTH123
        for inputs, targets in run.batches(TensorDataset(x, y), batch_size=8, epochs=2):
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(run.step, loss.item(), file=log)
            print(run.rank, run.step, file=together)
            if run.is_first:
                Path("latest.json").write_text(json.dumps({"step": run.step}))
    if run.is_first:
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    shoal.main(train)
