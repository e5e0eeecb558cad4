"""A setting stands behind the script, which ignores it: there would be no checkpoint every 5 steps.

long
run: -n 2 SCRIPT --checkpoint-every 5
exit: 0
says: warning: --checkpoint-every stands behind checkpoints_behind_script.py
says: use `shoal run -n 2 --checkpoint-every 5 checkpoints_behind_script.py`
"""

import torch

import shoal


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for (x,) in run.batches(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
