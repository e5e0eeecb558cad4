"""A ported DDP script that makes its process group only with a flag, which was forgotten.

long
says: an optimizer steps, but the script has neither called shoal.main nor made a process group
says: hand the training function to shoal.main(train), or call torch.distributed.init_process_group first
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()
model: torch.nn.Module = torch.nn.Linear(4, 1)
if args.distributed:
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(4):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
