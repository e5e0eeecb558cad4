"""Half precision with torch's gradient scaler, which run.keep holds.

long
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    model = run.model(nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run.keep(scaler=scaler)
    for x, y in run.batches(TensorDataset(torch.ones(64, 4), torch.ones(64, 1)), batch_size=8):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
