"""A script for one process is started on two without a change: two models that never meet.

says: no_shoal_main.py, line 17: an optimizer steps, but the script has neither called shoal.main nor made a process group
says: hand the training function to shoal.main(train), or call torch.distributed.init_process_group first
"""

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
for x in loader:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("saved")
