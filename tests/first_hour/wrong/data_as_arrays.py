"""The arrays themselves are given as data, not a data set of their rows.

says: TensorDataset(x, y) makes each row a sample
long
"""

import torch

import shoal


def train(run: shoal.Run) -> None:
    x, y = torch.randn(64, 4), torch.randint(2, (64,))
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches((x, y), batch_size=8):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
