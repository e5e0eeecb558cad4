"""One rank of `shoal bench collectives`: gloo and Shoal in turns, in one process, over the same buffers.

The first order says which other libraries to measure; each further one names a collective, a size and a scale for the
number of turns. Rank 0 answers each. A turn is a number of calls that all ranks begin together; the slowest
rank's time counts.
"""

from __future__ import annotations

import gc
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.rendezvous import TCPStore  # type: ignore[attr-defined]  # it is there, unannounced

from shoal.bench.collectives.figures import TRIPS
from shoal.bench.collectives.timed_calls import CALLS, Buffers, check
from shoal.bench.harness import OrderLine, in_turns
from shoal.codecs.identity import memory_of

TIMEOUT = timedelta(seconds=120)
MEMCPY_FROM = 1 << 20  # bytes; copies of less limit nothing
# (bytes, turns, calls per turn) up to that many bytes: short calls are made more often, long ones seldom.
PACES = ((64 << 10, 11, 30), (1 << 20, 9, 6), (16 << 20, 7, 1), (128 << 20, 5, 1), (1 << 62, 3, 1))
DEEPSPEED = "deepspeed"
SOCKET_KEY = "plain socket"
SOCKET_PIECE = 4 << 20  # bytes that one call hands to the kernel

Others = dict[tuple[str, str], Callable[[Buffers], object]]


class Rank:
    def __init__(self, rank: int, ranks: int, store: TCPStore, others: Others) -> None:
        """`others`: calls of other libraries, by library and collective."""
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
        seconds = in_turns({name: partial(self._turn, call, count) for name, call in calls.items()}, turns)
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
        # Shoal's all-reduce before each turn brings all ranks together within microseconds.
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


class PlainSocket:
    """A TCP connection between two ranks: how fast a link moves the bytes that a collective has to move."""

    def __init__(self, rank: int, store: TCPStore, host: str) -> None:
        """`host`: of rank 0."""
        if rank == 0:
            with socket.create_server((host, 0)) as listening:
                store.set(SOCKET_KEY, str(listening.getsockname()[1]))
                self._connection, _ = listening.accept()
        else:
            self._connection = socket.create_connection((host, int(store.get(SOCKET_KEY))))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def all_reduce(self, buffers: Buffers) -> None:
        """Move what the best all-reduce of two ranks moves: the size of the tensor, both ways at once."""
        sending = threading.Thread(target=self._send, args=(buffers,))
        sending.start()
        self._receive(buffers)
        sending.join()

    def send(self, buffers: Buffers) -> None:
        """There and back."""
        for turn in (0, 1):
            if buffers.rank == turn:
                self._send(buffers)
            else:
                self._receive(buffers)

    def close(self) -> None:
        self._connection.close()

    def _send(self, buffers: Buffers) -> None:
        memory = memory_of(buffers.one)
        for start in range(0, len(memory), SOCKET_PIECE):
            self._connection.sendall(memory[start : start + SOCKET_PIECE])

    def _receive(self, buffers: Buffers) -> None:
        memory = memory_of(buffers.other)
        while memory.nbytes:
            got = self._connection.recv_into(memory[:SOCKET_PIECE])
            if got == 0:
                raise ConnectionError("the plain socket was closed")
            memory = memory[got:]


def _deepspeed(rank: int, ranks: int) -> Callable[[Buffers], object]:
    """DeepSpeed's shared-memory all-reduce, an extension that it compiles on first use."""
    from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder  # type: ignore[import-not-found]  # optional

    ShareMemCommBuilder().load().initialize(ranks, rank)
    return lambda buffers: torch.ops.deepspeed.inference_all_reduce_(buffers.one)


def _forget_shared_memory() -> None:
    """DeepSpeed leaves its shared memory behind: remove the names once all ranks have opened it."""
    dist.barrier()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    for name in set(re.findall(r"\S+/deepspeed_allreduce_buffer\S+", maps)):
        Path(name).unlink(missing_ok=True)


def main() -> None:
    gc.disable()
    torch.set_num_threads(1)
    take_part(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])


def _new_store(host: str) -> TCPStore:
    """Listens on that address only; by default torch listens on all interfaces."""
    listener = socket.create_server((host, 0))
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=TIMEOUT,
        master_listen_fd=listener.detach(),
    )


def take_part(rank: int, ranks: int, host: str) -> None:
    orders = OrderLine()
    store = _new_store(host) if rank == 0 else None
    if store is not None:
        orders.answer(store.port)
    first = orders.next()
    if store is None:
        store = TCPStore(host, first["port"], is_master=False, wait_for_workers=False, timeout=TIMEOUT)
    others: Others = {}
    if first["deepspeed"]:
        others[DEEPSPEED, "all-reduce"] = _deepspeed(rank, ranks)
    if first["socket"]:
        plain = PlainSocket(rank, store, host)
        others |= {("socket", "all-reduce"): plain.all_reduce, ("socket", "send"): plain.send}
    bench = Rank(rank, ranks, store, others)
    _forget_shared_memory()
    for order in orders:
        found = bench.measure(*order)
        if rank == 0:
            orders.answer(found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
