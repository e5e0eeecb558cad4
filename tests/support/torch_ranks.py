"""Ranks of a torch process group for tests: processes forked from one that has imported torch and the backend.

`run_ranks(function, size)` calls `function(rank, size, *arguments)` in every rank, inside a process group of the
backend `shoal`, and returns what they return. `machines` makes ranks believe that they are on several machines: `(2,
1)` puts the third on another one; then sockets carry what memory would.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

Function = Callable[..., Any] | str  # "module:name" of one that only ranks can import
TIMEOUT = 60.0  # seconds that ranks get in all
# Imported once, before ranks are forked. Modules of the tests cannot be among them: the fork server has its own path.
PRELOADED = (
    "shoal.collectives.torch_backend.process_group",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(PRELOADED))


@dataclass(frozen=True)
class Broken:
    """What comes of a rank whose function raised."""

    trace: str


@dataclass(frozen=True)
class Place:
    """Where a rank is, and how it gets to the others."""

    rank: int
    size: int
    port: int  # of the store
    machines: tuple[int, ...]  # ranks per machine; () for one machine
    timeout: float  # of the group, in seconds


class Ranks:
    """The running ranks of one group."""

    def __init__(self, function: Function, size: int, *arguments: Any, **settings: Any) -> None:
        """Settings: `machines`, `timeout` of the group in seconds, `init` False to let the function make the group."""
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        machines, timeout = tuple(settings.get("machines", ())), settings.get("timeout", 30.0)
        self.processes, self._ends = [], []
        for rank in range(size):
            end, other = _context.Pipe()
            place = Place(rank, size, self._store.port, machines, timeout)
            process = _context.Process(
                target=_run, args=(place, function, arguments, other, settings.get("init", True))
            )
            process.start()
            other.close()
            self.processes.append(process)
            self._ends.append(end)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.processes[rank].pid, number)

    def said(self, rank: int) -> Any:
        """The next thing that this rank says with `say`, or its result."""
        if not self._ends[rank].poll(TIMEOUT):
            raise TimeoutError(f"rank {rank} says nothing")
        return self._ends[rank].recv()

    def results(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """What became of the ranks, in order; None for one that ended without a word."""
        wanted = range(len(self.processes)) if ranks is None else ranks
        found: dict[int, Any] = {}
        limit = time.monotonic() + TIMEOUT
        open_ends = {self._ends[rank]: rank for rank in wanted}
        while open_ends and time.monotonic() < limit:
            for end in wait(list(open_ends), timeout=limit - time.monotonic()):
                rank = open_ends.pop(end)  # type: ignore[index]  these are pipes
                with contextlib.suppress(EOFError):
                    found[rank] = end.recv()  # type: ignore[union-attr]  these are pipes
        return [found.get(rank) for rank in wanted]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
            process.close()
        for end in self._ends:
            end.close()


@contextlib.contextmanager
def ranks(function: Function, size: int, *arguments: Any, **settings: Any) -> Iterator[Ranks]:
    running = Ranks(function, size, *arguments, **settings)
    try:
        yield running
    finally:
        running.close()


def run_ranks(function: Function, size: int, *arguments: Any, **settings: Any) -> list[Any]:
    """What the ranks returned; a rank that raised fails the test with its trace."""
    with ranks(function, size, *arguments, **settings) as running:
        found = running.results()
        for rank, one in enumerate(found):
            assert not isinstance(one, Broken), f"rank {rank}: {one.trace}"
        # The last words of a process that ends well are its exit code.
        for rank, process in enumerate(running.processes):
            process.join(TIMEOUT)
            assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode} after saying {found[rank]!r}"
    return found


_end: Connection | None = None  # in a rank: to the test


def say(words: Any) -> None:
    """In a rank: tell the test something on the way."""
    assert _end is not None
    _end.send(words)


def store_of(place: Place) -> dist.Store:
    return dist.TCPStore("127.0.0.1", place.port, is_master=False, wait_for_workers=False)


def _run(place: Place, function: Function, arguments: tuple[Any, ...], end: Any, init: bool) -> None:
    global _end  # noqa: PLW0603  one test function per process
    _end = end
    torch.set_num_threads(1)
    if place.machines:
        _separate(place)
    try:
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(module), name)
        if init:
            store, limit = store_of(place), timedelta(seconds=place.timeout)
            dist.init_process_group("shoal", store=store, rank=place.rank, world_size=place.size, timeout=limit)
            result = function(place.rank, place.size, *arguments)
            dist.destroy_process_group()
        else:
            result = function(place, *arguments)
    except Exception:
        result = Broken(traceback.format_exc())
    end.send(result)


def _separate(place: Place) -> None:
    """Shared memory of ranks on other machines cannot be opened."""
    from shoal.transport.memory import neighbours
    from shoal.transport.memory.arena import PeerArena

    machine_of = [number for number, count in enumerate(place.machines) for _ in range(count)]
    own = machine_of[place.rank]
    original = neighbours._open

    def open_neighbours(*given: Any) -> list[PeerArena | None]:
        opened = original(*given)
        for rank, arena in enumerate(opened):
            if arena is not None and len(opened) == place.size and machine_of[rank] != own:
                arena.close()
                opened[rank] = None
        return opened

    neighbours._open = open_neighbours
