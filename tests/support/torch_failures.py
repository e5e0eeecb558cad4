"""What ranks do in tests of how the torch backend fails: called in every rank, they return what they saw."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.torch_ranks import Place, say, store_of

ENDLESS = 1_000_000
PATIENCE = 30.0  # seconds; never reached when all is well


@dataclass(frozen=True)
class Raised:
    """What a call raised."""

    kind: str
    text: str


def caught(call: Callable[[], Any]) -> Raised | None:
    try:
        call()
    except Exception as error:
        return Raised(type(error).__name__, str(error))
    return None


def _reduce() -> None:
    for _ in range(ENDLESS):
        dist.all_reduce(torch.ones(1000))


def _reduce_later() -> None:
    for _ in range(ENDLESS):
        dist.all_reduce(torch.ones(1000), async_op=True).wait()


def _reduce_by_future() -> None:
    for _ in range(ENDLESS):
        dist.all_reduce(torch.ones(1000), async_op=True).get_future().wait()


def _reduce_large() -> None:
    for _ in range(ENDLESS):
        dist.all_reduce(torch.ones(1_000_000))


def _train() -> None:
    model = DistributedDataParallel(nn.Linear(100, 100))
    for _ in range(ENDLESS):
        model(torch.randn(4, 100)).sum().backward()


def _receive() -> None:
    dist.recv(torch.zeros(4), 1)


ACTIONS = {
    action.__name__: action for action in (_reduce, _reduce_later, _reduce_by_future, _reduce_large, _train, _receive)
}


def until_it_fails(rank: int, _size: int, action: str) -> Any:
    """Say that all is well, go on until something happens, and return what."""
    dist.barrier()
    say("ready")
    if rank == 1 and action == "_receive":
        time.sleep(60)
    first = caught(ACTIONS[action])
    return first, caught(lambda: dist.all_reduce(torch.ones(1)))


MISTAKES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "length": (lambda: dist.all_reduce(torch.ones(10)), lambda: dist.all_reduce(torch.ones(11))),
    "shape": (lambda: dist.all_reduce(torch.ones(2, 3)), lambda: dist.all_reduce(torch.ones(3, 2))),
    "dtype": (lambda: dist.all_reduce(torch.ones(4)), lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32))),
    "operation": (lambda: dist.all_reduce(torch.ones(4)), lambda: dist.broadcast(torch.ones(4), 0)),
    "operator": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX),
    ),
    "gathered": (
        lambda: dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4)),
        lambda: dist.all_gather([torch.ones(4), torch.ones(5)], torch.ones(5)),
    ),
    "received": (lambda: dist.send(torch.ones(4), 1), lambda: dist.recv(torch.ones(5), 0)),
}


def make_a_mistake(rank: int, _size: int, mistake: str) -> Raised | None:
    return caught(MISTAKES[mistake][rank])


def wrong_calls(rank: int, size: int) -> list[Raised | None]:
    """What can be seen at once is refused, and the group goes on."""
    found = [
        caught(lambda: dist.all_gather([torch.ones(1)] * (size + 1), torch.ones(1))),
        caught(lambda: dist.all_gather_single(torch.ones(3), torch.ones(2))),
        caught(lambda: dist.all_reduce(torch.ones(1, dtype=torch.bool), dist.ReduceOp.AVG)),
        caught(lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)),
        caught(lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1], [1, 2])),
    ]
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size
    return found


LONELY: dict[str, Callable[[], Any]] = {
    "collective": lambda: dist.all_reduce(torch.ones(1)),
    "asynchronous": lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    "barrier": lambda: dist.barrier(timeout=timedelta(seconds=0.3)),
    "receive": lambda: dist.recv(torch.ones(1), 1),
    "monitored": lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.3)),
}


def one_does_not_come(rank: int, _size: int, how: str) -> Raised | None:
    """Rank 1 stays away until the others have given up."""
    group = dist.group.WORLD
    assert group is not None
    store = group.get_group_store()
    dist.barrier()
    group.set_timeout(timedelta(seconds=0.5))
    if rank == 1:
        store.wait(["given up by 0", "given up by 2"])
        return None
    found = caught(LONELY[how])
    store.set(f"given up by {rank}", "")
    return found


def one_is_missing_at_the_start(place: Place) -> Raised | None:
    if place.rank == 1:
        return None
    limit, store = timedelta(seconds=1), store_of(place)
    store.set(f"started {place.rank}", "")
    store.wait(["started 0", "started 2"])  # their time runs together, however long each took to start
    if place.rank == 2:
        _first_group(store).wait(["leader"])  # rank 0 is there
    return caught(lambda: dist.init_process_group("shoal", store=store, rank=place.rank, world_size=3, timeout=limit))


def _first_group(store: dist.Store) -> dist.Store:
    """Where the ranks of a program's first group meet."""
    return dist.PrefixStore("shoal", dist.PrefixStore("cpu/", dist.PrefixStore("0/", store)))


def stale_store(place: Place) -> float:
    """An earlier attempt met halfway: rank 0 opened a meeting, rank 1 came to it, and both died."""
    store = _first_group(store_of(place))
    if place.rank == 0:
        store.set("leader", "of old")
        store.set("of old/1", "somebody")
        attendants = [{"nonce": str(rank), "host": "somewhere", "process": 1} for rank in range(2)]
        store.set("of old/all", msgspec.msgpack.encode({"attendants": attendants, "token": "old"}))
        store_of(place).set("go", "")
    store_of(place).wait(["go"])
    while place.rank == 0 and store.get("of old/1") == b"somebody":
        time.sleep(0.01)  # until rank 1 has come to the meeting of old
    dist.init_process_group("shoal", store=store_of(place), rank=place.rank, world_size=place.size)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.item()


def recreate(place: Place, times: int) -> dict[str, list[int]]:
    """Make and destroy groups, and count what there is after some of them and after all."""
    store = store_of(place)
    found: dict[str, list[int]] = {"threads": [], "descriptors": [], "kilobytes": [], "keys": []}
    at_first = _threads(1)
    for number in range(times + 20):
        if number in (20, times + 19):
            found["threads"].append(_threads(at_first))
            found["descriptors"].append(len(list(Path("/proc/self/fd").iterdir())))
            found["kilobytes"].append(_resident())
            found["keys"].append(store.num_keys())
        prefix = dist.PrefixStore(f"again {number % 2}", store)
        dist.init_process_group("shoal", store=prefix, rank=place.rank, world_size=place.size)
        half = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(10), async_op=True, group=half).wait()
        dist.isend(torch.ones(1), 1) if place.rank == 0 else dist.recv(torch.ones(1), 0)
        dist.barrier()
        dist.destroy_process_group()
    return found


def _threads(expected: int) -> int:
    """How many there are, those of libraries too. One that was joined is still seen for a moment."""
    limit = time.monotonic() + PATIENCE
    while (found := len(list(Path("/proc/self/task").iterdir()))) > expected and time.monotonic() < limit:
        time.sleep(0.01)
    return found


def _resident() -> int:
    """Kilobytes of memory in use, without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def fork_in_the_middle(rank: int, size: int) -> float:
    """A forked child ends without disturbing its parent's group, and cannot use it."""
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    child = os.fork()
    if child == 0:
        refusals = [
            caught(lambda: dist.all_reduce(torch.ones(1))),
            caught(lambda: dist.all_reduce(torch.ones(1), async_op=True).wait()),
            caught(lambda: dist.send(torch.ones(1), 1 - rank)),
        ]
        is_refused = all(one is not None and "forked child" in one.text for one in refusals)
        dist.destroy_process_group()
        os._exit(0 if is_refused else 1)
    assert os.waitpid(child, 0)[1] == 0
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def abort_from_another_thread(rank: int, _size: int) -> Raised | None:
    group: Any = dist.group.WORLD
    store = group.get_group_store()

    def abort() -> None:
        while group._threaded.current is None:
            time.sleep(0.001)
        time.sleep(0.05)  # long enough for it to sleep in there
        dist.distributed_c10d._abort_process_group()
        store.set("aborted", "")

    if rank == 0:
        threading.Thread(target=abort).start()
        return caught(lambda: dist.all_reduce(torch.ones(1)))
    store.wait(["aborted"])
    caught(lambda: dist.all_reduce(torch.ones(1)))  # rank 0 had put its part where it can be taken
    return caught(lambda: dist.all_reduce(torch.ones(1)))


def stop_oneself(rank: int, _size: int) -> Raised | None:
    dist.barrier()
    if rank == 1:
        say("stopping")
        os.kill(os.getpid(), signal.SIGSTOP)
    return caught(lambda: dist.all_reduce(torch.ones(1)))
