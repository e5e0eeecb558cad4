"""The run that the script goes on with is not there.

run: python SCRIPT
says: there is no run 'runs/monday'
says: and none under runs/; give the path of a run directory
long
"""

import torch
import torch.nn.functional as F

import shoal

torch.set_num_threads(1)
torch.manual_seed(0)
DATA = [(torch.randn(4), torch.tensor(number % 2)) for number in range(32)]


def train(run):
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in run.batches(DATA, batch_size=8, epochs=1):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train, resume="runs/monday")
