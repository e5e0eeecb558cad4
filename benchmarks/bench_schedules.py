"""Bytes that each rank sends in an all-reduce, by schedule and number of ranks: real groups over TCP, in threads.

Run `python benchmarks/bench_schedules.py`. Prints tables in units of the tensor; results are in `bench_schedules.md`.
Nothing is timed: threads of one process share Python's lock.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from shoal.codecs.registry import codec_by_name
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Generation, Member

TOKEN = "benchmark"
SCHEDULES = ("ring", "tree", "double-tree", "halving-doubling")


def in_threads(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def connected(size: int, schedule: str) -> list[ThreadedGroup]:
    listeners = [PeerListener("127.0.0.1", TOKEN) for _ in range(size)]
    members = tuple(Member(rank, rank, "here", 1, each.address) for rank, each in enumerate(listeners))
    generation = Generation(1, members, schedule, "identity", "benchmark")
    groups: dict[int, ThreadedGroup] = {}

    def connect(rank: int) -> None:
        mesh = connect_mesh(listeners[rank], generation, rank, 30.0)
        groups[rank] = ThreadedGroup.over(mesh, 1, schedule, codec_by_name("identity"))

    in_threads([lambda rank=rank: connect(rank) for rank in range(size)])  # type: ignore[misc]
    for listener in listeners:
        listener.close()
    return [groups[rank] for rank in range(size)]


def sent(size: int, schedule: str, elements: int) -> list[float]:
    """By rank, in units of the tensor, headers and all."""
    groups = connected(size, schedule)
    tensors = [torch.full((elements,), float(rank)) for rank in range(size)]
    for pending in [group.all_reduce(tensors[group.rank], label="counted") for group in groups]:
        pending.wait()
    assert all((tensor == size * (size - 1) / 2).all() for tensor in tensors), "a sum is wrong"
    counted = [group.bytes_sent / (4 * elements) for group in groups]
    in_threads([group.close for group in groups])
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(range(2, 17)))
    parser.add_argument("--elements", type=int, default=2_000_000, help="of float32")
    parser.add_argument("--json", type=Path, help="write what every rank sent to this file")
    options = parser.parse_args()
    print("| ranks | ring | tree, rank 0 | tree, busiest | double-tree, busiest | halving-doubling |")
    print("| --- | --- | --- | --- | --- | --- |")
    found: dict[int, dict[str, list[float]]] = {}
    for size in options.ranks:
        found[size] = {schedule: sent(size, schedule, options.elements) for schedule in SCHEDULES}
        cells = (
            max(found[size]["ring"]),
            found[size]["tree"][0],
            *(max(found[size][schedule]) for schedule in SCHEDULES[1:]),
        )
        print(f"| {size} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
