"""Every worker scores a share of the files that its rank names; nobody trains and nobody needs the others.

long
says: [worker 1] [1, 3, 5]
"""

import os

import torch

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
model = torch.nn.Linear(4, 1).eval()
with torch.no_grad():
    model(torch.randn(8, 4))
print(list(range(6))[rank::size])
