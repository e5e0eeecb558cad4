"""The script has an option -n of its own.

long
run: SCRIPT -n 3
says: 3 epochs
"""

import argparse

import torch

import shoal

parser = argparse.ArgumentParser()
parser.add_argument("-n", "--epochs", type=int, default=1)
args = parser.parse_args()


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(32, 4))
    for (x,) in run.batches(data, batch_size=8, epochs=args.epochs):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(args.epochs, "epochs")


if __name__ == "__main__":
    shoal.main(train)
