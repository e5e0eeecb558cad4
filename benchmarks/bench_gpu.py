"""Collectives on tensors of a GPU that two processes share: Shoal's backend and gloo's, in turns, side by side.

    python benchmarks/bench_gpu.py [--quick]

Prints tables in Markdown. Needs a GPU. Times are medians, on rank 0, from a common start until the result is on the
GPU. "In one turn" is without overlap; "in memory" is Shoal with the same tensor on the CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shoal.collectives.gpu import gpu_cuts
from shoal.collectives.gpu.pinned_memory import pool

RANKS = 2
MB = 1_000_000
SIZES = (4_000, 64_000, MB, 4 * MB, 16 * MB, 64 * MB, 100 * MB, 400 * MB)  # bytes
GPU = torch.device("cuda", 0)


def timed(call: Callable[[], object], turns: int) -> float:
    """Median seconds."""
    found = []
    for _ in range(turns):
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def in_turns(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Medians of each, measured in small rounds one after the other."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        timed(call, 2)
    for _ in range(7):
        for name, call in calls.items():
            found[name].append(timed(call, seconds_to_turns(name, found, seconds)))
    return {name: statistics.median(times) for name, times in found.items()}


def seconds_to_turns(name: str, found: dict[str, list[float]], seconds: float) -> int:
    """As many calls as fit into a seventh of the time; all ranks must agree, so rank 0 says."""
    known = found[name][-1] if found[name] else 0.05
    turns = torch.tensor([max(1, min(50, int(seconds / 7 / known)))])
    dist.broadcast(turns, 0)
    return int(turns.item())


@contextmanager
def turns_of(least: int, most: int):
    kept = gpu_cuts.LEAST_BYTES, gpu_cuts.MOST_BYTES
    gpu_cuts.LEAST_BYTES, gpu_cuts.MOST_BYTES = least, most
    try:
        yield
    finally:
        gpu_cuts.LEAST_BYTES, gpu_cuts.MOST_BYTES = kept


class Bench:
    def __init__(self, rank: int, seconds: float) -> None:
        self.rank = rank
        self.seconds = seconds
        self.gloo = dist.new_group(backend="gloo")

    def say(self, *cells: object) -> None:
        if self.rank == 0:
            texts = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
            print("| " + " | ".join(texts) + " |", flush=True)

    def head(self, title: str, *names: str) -> None:
        if self.rank == 0:
            print(f"\n{title}\n", flush=True)
        self.say(*names)
        self.say(*["---"] * len(names))

    def copies(self) -> None:
        """What the way to the host and back allows."""
        size = 256 * MB
        there = torch.empty(size, dtype=torch.uint8, device=GPU)
        ordinary, pinned = torch.empty(size, dtype=torch.uint8), pool.take(size)
        assert pinned.is_pinned()
        self.head("Copies of 256 MB, GB/s, both processes at once", "host memory", "down", "up")
        for name, host in (("ordinary", ordinary), ("pinned", pinned)):
            down = timed(lambda host=host: host.copy_(there, non_blocking=True), 7)
            up = timed(lambda host=host: there.copy_(host, non_blocking=True), 7)
            self.say(name, size / down / 1e9, size / up / 1e9)

    def all_reduce(self) -> None:
        names = ("bytes", "shoal, ms", "gloo, ms", "gloo / shoal", "in one turn, ms", "in memory, ms", "shoal, GB/s")
        self.head("All-reduce of float32, 2 processes, one GPU", *names)
        for size in SIZES:
            tensor, on_cpu = torch.ones(size // 4, device=GPU), torch.ones(size // 4)
            whole = size if size <= 256 * MB else 256 * 1024 * 1024

            def in_one_turn(tensor: torch.Tensor = tensor, whole: int = whole) -> None:
                with turns_of(whole, whole):
                    dist.all_reduce(tensor)

            calls = {
                "shoal": lambda tensor=tensor: dist.all_reduce(tensor),
                "gloo": lambda tensor=tensor: dist.all_reduce(tensor, group=self.gloo),
                "one": in_one_turn,
                "memory": lambda tensor=on_cpu: dist.all_reduce(tensor),
            }
            found = in_turns(calls, self.seconds)
            ratio, rate = found["gloo"] / found["shoal"], size / found["shoal"] / 1e9
            ours, theirs, one, memory = (1e3 * found[name] for name in calls)
            self.say(f"{size:,}", ours, theirs, ratio, one, memory, rate)

    def turn_sizes(self) -> None:
        self.head("All-reduce by the size of a turn, ms", "turn", *(f"{size // MB} MB" for size in SIZES[3:7]))
        for turn in (2**20, 2 * 2**20, 4 * 2**20, 8 * 2**20, 16 * 2**20):
            times = []
            for size in SIZES[3:7]:
                tensor = torch.ones(size // 4, device=GPU)
                with turns_of(turn, turn):
                    times.append(1e3 * timed(lambda tensor=tensor: dist.all_reduce(tensor), 9))
            self.say(f"{turn // 1024} KB", *times)

    def others(self) -> None:
        self.head("Other collectives, 64 MB in all, ms", "what", "shoal", "gloo", "gloo / shoal")
        whole, part = torch.ones(16 * MB, device=GPU), torch.ones(8 * MB, device=GPU)
        parts = list(whole.split(8 * MB))
        kinds: dict[str, Callable[[dist.ProcessGroup | None], object]] = {
            "all-gather": lambda group: dist.all_gather(parts, part, group=group),
            "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        }
        for name, call in kinds.items():
            calls = {"shoal": lambda call=call: call(None), "gloo": lambda call=call: call(self.gloo)}
            found = in_turns(calls, self.seconds)
            self.say(name, 1e3 * found["shoal"], 1e3 * found["gloo"], found["gloo"] / found["shoal"])
        found = in_turns({"shoal": lambda: dist.reduce_scatter_tensor(part, whole)}, self.seconds)
        self.say("reduce-scatter", 1e3 * found["shoal"], "-", "-")

    def overlap(self) -> None:
        """Matrix products on the GPU while a tensor of 100 MB is reduced."""
        names = ("backend", "products, ms", "all-reduce, ms", "both at once, ms", "hidden")
        self.head("Computing while 100 MB are reduced", *names)
        tensor, matrix = torch.ones(25 * MB, device=GPU), torch.ones(4096, 4096, device=GPU, dtype=torch.bfloat16)

        def products() -> None:
            for _ in range(60):
                matrix @ matrix

        for name, group in (("shoal", None), ("gloo", self.gloo)):

            def both(group: dist.ProcessGroup | None = group) -> None:
                work = dist.all_reduce(tensor, group=group, async_op=True)
                products()
                work.wait()

            calls = {"alone": products, "sum": lambda group=group: dist.all_reduce(tensor, group=group), "both": both}
            found = {what: 1e3 * seconds for what, seconds in in_turns(calls, self.seconds).items()}
            hidden = (found["alone"] + found["sum"] - found["both"]) / min(found["alone"], found["sum"])
            self.say(name, found["alone"], found["sum"], found["both"], f"{hidden:.0%}")

    def training(self) -> None:
        """A step of DDP with 86 million parameters."""
        self.head("A step of DDP, 12 layers of width 768 (85 M parameters), ms", "what", "step")
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
        data = torch.randn(8, 128, 768, device=GPU)
        models = {}
        for name, group in (("shoal", None), ("gloo", self.gloo)):
            torch.manual_seed(0)
            model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(GPU)
            models[name] = DistributedDataParallel(model, device_ids=[0], process_group=group)
        models["no exchange"] = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(GPU)

        def step(model: nn.Module) -> None:
            model.zero_grad()
            model(data).square().mean().backward()

        found = in_turns({name: lambda model=model: step(model) for name, model in models.items()}, self.seconds)
        for name, seconds in found.items():
            self.say(name, 1e3 * seconds)


def work(rank: int, store: str, seconds: float) -> None:
    torch.cuda.set_device(GPU)
    dist.init_process_group("shoal", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    bench = Bench(rank, seconds)
    if rank == 0:
        print(f"{torch.cuda.get_device_name(GPU)}, torch {torch.__version__}, {os.cpu_count()} cores", flush=True)
    for part in (bench.copies, bench.all_reduce, bench.turn_sizes, bench.others, bench.overlap, bench.training):
        part()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seconds = 1.0 if options.quick else 4.0
    if options.rank is not None:
        work(options.rank, options.store, seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, __file__, "--store", f"{folder}/store", *(["--quick"] if options.quick else [])]
        ranks = [subprocess.Popen([*line, "--rank", str(rank)]) for rank in range(RANKS)]
        try:
            sys.exit(max(rank.wait() for rank in ranks))
        finally:
            for rank in ranks:
                rank.kill()


if __name__ == "__main__":
    main()
