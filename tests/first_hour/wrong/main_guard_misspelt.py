"""The guard at the end is misspelt, so `shoal.main` is never called and nothing is trained.

exit: 0
says: warning: main_guard_misspelt.py ran as 2 independent copies: it neither called shoal.main nor made a process group
says: hand the training function to shoal.main(train), or call torch.distributed.init_process_group first, or start it with python
long
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


if __name__ == "main":
    shoal.main(train)
