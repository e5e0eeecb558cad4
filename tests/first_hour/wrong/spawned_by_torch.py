"""A DDP script as most tutorials have it, which spawns its own processes with torch.multiprocessing.

says: line 32: torch.multiprocessing.spawn: the script starts its own workers
says: call the function directly, once, with rank = int(os.environ["RANK"]), or run the script with plain python
long
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(rank: int, world_size: int) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.long)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
