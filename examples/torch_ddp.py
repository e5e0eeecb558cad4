"""A plain PyTorch script on the backend `shoal`: DistributedDataParallel, nothing of Shoal's API.

python examples/torch_ddp.py                            one process
torchrun --nproc-per-node 4 examples/torch_ddp.py       four, started by torchrun
shoal run -n 4 examples/torch_ddp.py                    the same, started by Shoal
python examples/torch_ddp.py --backend gloo             torch's own backend, to compare with
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(steps: int, width: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)  # every rank has data of its own
    answers = torch.randn(64, 10)
    started = time.perf_counter()
    for _ in range(steps):
        x = torch.randn(32, 64, generator=generator)
        loss = F.cross_entropy(model(x), (x @ answers).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG if dist.get_backend() == "shoal" else dist.ReduceOp.SUM)
    if dist.get_backend() != "shoal":
        mean /= size  # gloo has no averages
    if rank == 0:
        seconds = (time.perf_counter() - started) / steps
        print(f"loss {mean:.3f} after {steps} steps on {size} rank(s), {seconds * 1000:.1f} ms per step")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="shoal")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if "RANK" not in os.environ:
        os.environ.update(alone)
    dist.init_process_group(options.backend)
    train(options.steps, options.width)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
