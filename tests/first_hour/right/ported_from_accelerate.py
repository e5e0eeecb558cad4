"""What an accelerate script becomes: a DataLoader, accumulated batches, autocast, a schedule, clipping by hand.

long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    data = TensorDataset(torch.eye(4).repeat(16, 1), torch.arange(4).repeat(16))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = run.model(nn.Linear(4, 4))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    steps = 2 * len(run.batches(loader)) // 2  # type: ignore[arg-type]  # an Iterator to type checkers
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    run.keep(schedule=schedule)
    for epoch in run.epochs(2):
        model.train()
        for x, y in epoch.batches(loader, accumulate=2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            if run.applied:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if run.applied:
                schedule.step()


if __name__ == "__main__":
    shoal.main(train)
