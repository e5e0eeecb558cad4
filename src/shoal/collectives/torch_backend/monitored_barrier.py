"""torch's `monitored_barrier` through the store: rank 0 learns which ranks did not come, and the group stays usable.

torch offers the function for gloo only and checks the backend's name. `offer` puts ours in front of it, for our groups;
every other group gets torch's own. The errors have the wording that torch's users know.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import distributed
from torch._C._distributed_c10d import Store
from torch.distributed import DistBackendError, distributed_c10d

PAUSE = 0.005  # seconds between two checks of the store


class MonitoredBarrier:
    """The monitored barriers of one group."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank, self._size = rank, size
        self._passed = 0  # how often this rank has been here

    def wait(self, seconds: float, *, for_all: bool) -> None:
        """`for_all`: rank 0 names all missing ranks, not only the first."""
        name = f"monitored/{self._passed}"
        self._passed += 1
        started = time.monotonic()
        if self._rank == 0:
            self._lead(name, seconds, for_all=for_all)
            return
        self._store.set(f"{name}/{self._rank}", "here")
        while not self._store.check([f"{name}/verdict"]):
            if time.monotonic() - started > seconds:
                raise self._failed(f"it did not answer within {seconds:g} s")
            time.sleep(PAUSE)
        verdict = self._store.get(f"{name}/verdict").decode()
        if verdict != "passed":
            raise self._failed(verdict)

    def _lead(self, name: str, seconds: float, *, for_all: bool) -> None:
        deadline = time.monotonic() + seconds
        missing = list(range(1, self._size))
        while True:
            missing = [rank for rank in missing if not self._store.check([f"{name}/{rank}"])]
            if not missing or time.monotonic() >= deadline:
                break
            time.sleep(PAUSE)
        if not missing and seconds > 0:
            self._store.set(f"{name}/verdict", "passed")
            return
        whom = f"Ranks {', '.join(map(str, missing))}" if for_all else f"Rank {min(missing, default=0)}"
        text = f"{whom} failed to pass monitoredBarrier in {seconds * 1000:g} ms"
        if seconds <= 0:
            text = f"Rank 0 timed out in monitoredBarrier after {seconds * 1000:g} ms; ranks {missing} were not there"
        self._store.set(f"{name}/verdict", text)
        raise DistBackendError(text)

    def _failed(self, why: str) -> DistBackendError:
        return DistBackendError(
            f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
            f"send/recv from rank 0: {why}"
        )


def offer(kind: type) -> None:
    """Make `torch.distributed.monitored_barrier` work for groups of this kind."""
    original: Callable[..., None] = distributed_c10d.monitored_barrier
    if getattr(original, "offers", None) is kind:
        return

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        chosen = group or distributed_c10d._get_default_group()
        if not isinstance(chosen, kind):
            original(group, timeout, wait_all_ranks)
            return
        limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        chosen.monitored_barrier(limit, wait_all_ranks)  # type: ignore[attr-defined]  # our kind has it

    monitored_barrier.offers = kind  # type: ignore[attr-defined]  # so that `offer` replaces it only once
    distributed_c10d.monitored_barrier = monitored_barrier
    distributed.monitored_barrier = monitored_barrier
