"""A plain script that makes its process group through a device mesh.

long
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cpu", (2,))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(8, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group())
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
