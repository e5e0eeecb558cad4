"""The loop was never moved into a function for `shoal.main`, though the script imports shoal.

says: an optimizer steps, but the script has neither called shoal.main nor made a process group
says: hand the training function to shoal.main(train), or call torch.distributed.init_process_group first
long
"""

import torch

import shoal

torch.manual_seed(shoal.__version__ != "")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
