"""All-reduce of float32 over TCP against gloo, in the same processes and interleaved.

Run `python benchmarks/bench_all_reduce.py`. Prints the median of each and the ratio; results are in
`bench_all_reduce.md`. `--schedule ring tree` compares the two, which is how the switch in `collectives.choice` was set.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from shoal.codecs.registry import codec_by_name
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Address, Generation, Member

TOKEN = "benchmark"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connect(store: dist.Store, rank: int, size: int, schedules: list[str]) -> dict[str, ThreadedGroup]:
    """One group per schedule, each in a generation of its own."""
    listener = PeerListener("127.0.0.1", TOKEN)
    store.set(f"address {rank}", json.dumps([listener.address.host, listener.address.port]))
    addresses = [Address(*json.loads(store.get(f"address {peer}"))) for peer in range(size)]
    members = tuple(Member(peer, peer, "here", os.getpid(), address) for peer, address in enumerate(addresses))
    groups = {}
    for number, schedule in enumerate(schedules, start=1):
        generation = Generation(number, members, schedule, "identity", "benchmark")
        mesh = connect_mesh(listener, generation, rank, 30.0)
        groups[schedule] = ThreadedGroup.over(mesh, number, schedule, codec_by_name("identity"))
    listener.close()
    return groups


def timed(call: Callable[[], None]) -> float:
    """Milliseconds, all ranks starting together."""
    dist.barrier()
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def measure(rank: int, size: int, port: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    groups = connect(store, rank, size, options.schedule)
    for kilobytes in options.kilobytes:
        tensor = torch.zeros(kilobytes * 256)
        repeats = max(options.least, min(options.most, 400_000 // kilobytes))
        calls: dict[str, Callable[[], None]] = {"gloo": lambda tensor=tensor: dist.all_reduce(tensor)}  # type: ignore[misc]
        for name, group in groups.items():
            calls[name] = lambda tensor=tensor, group=group: group.all_reduce(tensor, label="benchmark").wait()  # type: ignore[misc]
        times: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(repeats + 2):
            turn = repeat % len(calls)  # whoever comes first finds the caches cold: take turns
            for name in [*calls][turn:] + [*calls][:turn]:
                elapsed = timed(calls[name])
                if repeat >= 2:  # the first two warm up
                    times[name].append(elapsed)
        if rank == 0:
            report(size, kilobytes, times)
    for group in groups.values():
        group.close()
    dist.destroy_process_group()


def report(size: int, kilobytes: int, times: dict[str, list[float]]) -> None:
    gloo = statistics.median(times["gloo"])
    parts = [f"{size} ranks  {kilobytes:>7} KB  gloo {gloo:8.3f} ms"]
    for name, values in times.items():
        if name != "gloo":
            median = statistics.median(values)
            parts.append(f"{name} {median:8.3f} ms ({median / gloo:.2f} of gloo)")
    print("   ".join(parts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--kilobytes", type=int, nargs="+", default=[64, 1024, 16 * 1024, 100 * 1024])
    parser.add_argument("--schedule", nargs="+", default=["auto"], choices=["auto", "ring", "tree"])
    parser.add_argument("--least", type=int, default=15, help="fewest repeats of one size")
    parser.add_argument("--most", type=int, default=200, help="most repeats of one size")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for size in options.ranks:
        port = free_port()
        workers = [context.Process(target=measure, args=(rank, size, port, options)) for rank in range(size)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise SystemExit(f"a benchmark process failed: {[worker.exitcode for worker in workers]}")


if __name__ == "__main__":
    main()
