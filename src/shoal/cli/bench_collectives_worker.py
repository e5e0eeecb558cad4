"""One rank of `shoal bench collectives`: gloo and Shoal in turns, in one process, over the same buffers.

Reads its orders from standard input, one JSON line. Rank 0 prints a JSON line per measurement. A turn is a number of
calls that all ranks begin together; it counts with the time of the rank that took longest.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, TCPStore

from shoal.cli.bench_collectives_calls import CALLS, Buffers, check

TIMEOUT = timedelta(seconds=120)
MEMCPY_FROM = 1 << 20  # bytes; smaller copies are not what limits anything
# Turns, and calls per turn, up to so many bytes: more where one is short. Few where all took a second.
PACES = ((64 << 10, 11, 30), (1 << 20, 9, 6), (16 << 20, 7, 1), (128 << 20, 5, 1), (1 << 62, 3, 1))
DEEPSPEED = "deepspeed"


class Bench:
    def __init__(self, rank: int, ranks: int, store: TCPStore, *, deepspeed: bool) -> None:
        self.rank, self.ranks = rank, ranks
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
        self._gloo: ProcessGroup = dist.group.WORLD
        self._shoal: ProcessGroup = dist.new_group(backend="shoal", timeout=TIMEOUT)
        self._word = torch.zeros(1)
        self._deepspeed = _deepspeed(rank, ranks) if deepspeed else None

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
        for library, group in (("gloo", self._gloo), ("shoal", self._shoal)):
            for way, call in CALLS[collective].items():
                if self._works(collective, way, group):
                    calls[f"{library} {way}".strip()] = lambda call=call, group=group: call(buffers, group)
        if buffers.size >= MEMCPY_FROM:
            calls["memcpy"] = lambda: buffers.other.copy_(buffers.one)
        if self._deepspeed is not None and collective == "all-reduce":
            calls[DEEPSPEED] = lambda: self._deepspeed(buffers.one)
        return calls

    def _works(self, collective: str, way: str, group: ProcessGroup) -> bool:
        """gloo lacks some ways of calling; a wrong result is an error."""
        try:
            wrong = check(collective, way, group)
        except RuntimeError as error:
            if group is self._shoal or "not support" not in str(error) + type(error).__name__:
                raise
            return False
        if wrong is not None:
            raise SystemExit(f"{dist.get_backend(group)}: {wrong}")
        return True

    def _turn(self, call: Callable[[], object], count: int) -> float:
        # Shoal's, before each of them: it brings ranks together within microseconds.
        dist.all_reduce(self._word, group=self._shoal)
        started = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - started) / count

    def _slowest(self, seconds: dict[str, list[float]]) -> dict[str, list[float]]:
        found = torch.tensor(list(seconds.values()), dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._gloo)
        return dict(zip(seconds, found.tolist(), strict=True))


def _deepspeed(rank: int, ranks: int) -> Callable[[torch.Tensor], object]:
    """DeepSpeed's shared-memory all-reduce, an extension that it compiles on first use."""
    from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder  # type: ignore[import-not-found]  # optional

    module = ShareMemCommBuilder().load()
    module.initialize(ranks, rank)
    return lambda tensor: module.inference_all_reduce(tensor, dist.ReduceOp.SUM)


def main() -> None:
    gc.disable()
    torch.set_num_threads(1)
    rank, ranks, host = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT) if rank == 0 else None
    if store is not None:
        _say({"port": store.port})
    orders = json.loads(sys.stdin.readline())
    if store is None:
        store = TCPStore(host, orders["port"], is_master=False, wait_for_workers=False, timeout=TIMEOUT)
    bench = Bench(rank, ranks, store, deepspeed=orders["deepspeed"])
    for collective, size in orders["cases"]:
        found = bench.measure(collective, size, orders["scale"])
        if rank == 0:
            _say(found)
    dist.destroy_process_group()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
