"""Every worker splits off other samples for validation: they train on what others validate with.

says: of the data differs between worker 0 and worker 1; every worker must be given the whole data set
long
"""

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset, random_split

import shoal

inputs_of_all = torch.arange(256.0).reshape(64, 4) / 256
data = TensorDataset(inputs_of_all, (inputs_of_all.sum(dim=1) > 2).long())
training, validation = random_split(data, [48, 16])


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(training, batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.evaluate(lambda inputs, targets: F.cross_entropy(model(inputs), targets), validation, batch_size=8)


if __name__ == "__main__":
    shoal.main(train)
