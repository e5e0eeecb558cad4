"""One rank of `shoal bench collectives`: gloo and Shoal in turns, in one process, over the same buffers.

Reads JSON lines from standard input: what to measure besides, then a collective, a size and a scale of the turns each.
Rank 0 prints a JSON line per measurement. A turn is a number of calls that all ranks begin together; it counts with the
time of the rank that took longest.
"""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.rendezvous import TCPStore  # type: ignore[attr-defined]  # it is there, unannounced

from shoal.bench.collectives.calls import CALLS, Buffers, check
from shoal.bench.collectives.figures import TRIPS
from shoal.bench.collectives.plain_socket import PlainSocket

TIMEOUT = timedelta(seconds=120)
MEMCPY_FROM = 1 << 20  # bytes; smaller copies are not what limits anything
# Turns, and calls per turn, up to so many bytes: more where one is short. Few where all took a second.
PACES = ((64 << 10, 11, 30), (1 << 20, 9, 6), (16 << 20, 7, 1), (128 << 20, 5, 1), (1 << 62, 3, 1))
DEEPSPEED = "deepspeed"

Others = dict[tuple[str, str], Callable[[Buffers], object]]


class Bench:
    def __init__(self, rank: int, ranks: int, store: TCPStore, others: Others) -> None:
        """`others`: what is measured besides, by name and collective."""
        self.rank, self.ranks = rank, ranks
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
        self._groups: dict[str, ProcessGroup] = {
            "gloo": dist.distributed_c10d._get_default_group(),
            "shoal": dist.new_group(backend="shoal", timeout=TIMEOUT),
        }
        self._word = torch.zeros(1)
        self._others = others

    def measure(self, collective: str, size: int, scale: float) -> dict[str, Any]:
        """Seconds per call by library and way of calling, of the slowest rank, turn by turn."""
        buffers = Buffers(size, self.rank, self.ranks)
        turns, count = next((turns, count) for most, turns, count in PACES if size <= most)
        turns = max(2, round(turns * scale))
        calls = self._calls(collective, buffers)
        for call in calls.values():
            self._turn(call, min(2, count))
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        names = list(calls)
        for turn in range(turns):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                seconds[name].append(self._turn(calls[name], count))
        return {"collective": collective, "bytes": buffers.size, "ranks": self.ranks, "seconds": self._slowest(seconds)}

    def _calls(self, collective: str, buffers: Buffers) -> dict[str, Callable[[], object]]:
        calls: dict[str, Callable[[], object]] = {}
        for library, group in self._groups.items():
            for way, call in CALLS[collective].items():
                if self._works(collective, way, library):
                    calls[f"{library} {way}".strip()] = partial(call, buffers, group)
        if buffers.size >= MEMCPY_FROM:
            calls["memcpy"] = partial(_copy, buffers, TRIPS.get(collective, 1))
        for (library, does), other in self._others.items():
            if does == collective:
                calls[library] = partial(other, buffers)
        return calls

    def _works(self, collective: str, way: str, library: str) -> bool:
        """gloo lacks some ways of calling; a wrong result is an error."""
        try:
            wrong = check(collective, way, self._groups[library])
        except RuntimeError as error:
            if library != "gloo" or "not support" not in str(error):
                raise
            return False
        if wrong is not None:
            raise SystemExit(f"{library}: {wrong}")
        return True

    def _turn(self, call: Callable[[], object], count: int) -> float:
        # Shoal's, before each of them: it brings ranks together within microseconds.
        dist.all_reduce(self._word, group=self._groups["shoal"])
        started = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - started) / count

    def _slowest(self, seconds: dict[str, list[float]]) -> dict[str, list[float]]:
        found = torch.tensor(list(seconds.values()), dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._groups["gloo"])
        return dict(zip(seconds, found.tolist(), strict=True))


def _copy(buffers: Buffers, times: int) -> None:
    for _ in range(times):
        buffers.other.copy_(buffers.one)


def _deepspeed(rank: int, ranks: int) -> Callable[[Buffers], object]:
    """DeepSpeed's shared-memory all-reduce, an extension that it compiles on first use."""
    from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder  # type: ignore[import-not-found]  # optional

    ShareMemCommBuilder().load().initialize(ranks, rank)
    return lambda buffers: torch.ops.deepspeed.inference_all_reduce_(buffers.one)


def _forget_shared_memory() -> None:
    """DeepSpeed leaves its shared memory behind: once all have opened it, nobody needs the names."""
    dist.barrier()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    for name in set(re.findall(r"\S+/deepspeed_allreduce_buffer\S+", maps)):
        Path(name).unlink(missing_ok=True)


def main() -> None:
    gc.disable()
    torch.set_num_threads(1)
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        take_part(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], answers)


def _new_store(host: str) -> TCPStore:
    """On that address alone: by itself torch listens on all interfaces."""
    listener = socket.create_server((host, 0))
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=TIMEOUT,
        master_listen_fd=listener.detach(),
    )


def take_part(rank: int, ranks: int, host: str, answers: IO[str]) -> None:
    store = _new_store(host) if rank == 0 else None
    if store is not None:
        answers.write(json.dumps({"port": store.port}) + "\n")
    orders = json.loads(sys.stdin.readline())
    if store is None:
        store = TCPStore(host, orders["port"], is_master=False, wait_for_workers=False, timeout=TIMEOUT)
    others: Others = {}
    if orders["deepspeed"]:
        others[DEEPSPEED, "all-reduce"] = _deepspeed(rank, ranks)
    if orders["socket"]:
        plain = PlainSocket(rank, store, host)
        others |= {("socket", "all-reduce"): plain.all_reduce, ("socket", "send"): plain.send}
    bench = Bench(rank, ranks, store, others)
    _forget_shared_memory()
    for line in sys.stdin:
        found = bench.measure(*json.loads(line))
        if rank == 0:
            answers.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
