"""Every worker opens the same log file anew before `shoal.main`, so that lines of all but one are lost.

exit: 0
says: shoal: warning: workers 0 and 1 both write train.log (log_opened_at_the_top.py line 16); write it under
long
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import shoal

log = Path("train.log").open("w")  # noqa: SIM115  as scripts do it
digits = TensorDataset(torch.arange(64.0).reshape(16, 4) / 64, torch.arange(16) % 2)


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(digits, batch_size=4):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.write(f"{loss.item()}\n")


if __name__ == "__main__":
    shoal.main(train)
