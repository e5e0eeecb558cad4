"""How much memory a server and each of its jobs may use. A request beyond that raises `ServerRefused`. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.errors import ServerRefused
from shoal.parameters import texts


class MemoryBudget:
    """Bytes of parameters, state and staged pushes of all jobs of one server."""

    def __init__(self, server: int, limit: int, held: Callable[[], int]) -> None:
        """`limit` 0: no limit. `held` returns the bytes that jobs hold now or have been promised."""
        self._server = server
        self.limit = limit
        self._held = held

    def check(self, wanted: int, what: str, *, instead_of: int = 0) -> None:
        """Refuse `wanted` more bytes for `what` if they are too many. They replace `instead_of` of the held bytes."""
        if not self.limit:
            return
        held = self._held() - instead_of
        if held + wanted > self.limit:
            reason = texts.no_room(self._server, what, wanted=wanted, held=held, limit=self.limit)
            raise ServerRefused(reason, kind="memory")


class Usage(Protocol):
    """The memory of one job on one server."""

    @property
    def held_bytes(self) -> int: ...

    @property
    def claimed_bytes(self) -> int:
        """Bytes that the job holds or has been promised; no other job gets them."""


class SpaceBudget:
    """What one job may hold on one server: a part of the server's memory, and staged pushes up to the job's quota."""

    def __init__(self, budget: MemoryBudget, job: str, quota: int, usage: Usage) -> None:
        """`quota` 0: no quota. `space` checks parameters and state, which count on all servers together."""
        self._budget = budget
        self._job = job
        self._quota = quota
        self._usage = usage

    def check(self, wanted: int, what: str) -> None:
        """Refuse a layout that needs `wanted` bytes and replaces the one that the job has now."""
        self._budget.check(wanted, what, instead_of=self._usage.claimed_bytes)

    def check_staged(self, size: int, staged: int, what: str) -> None:
        """Refuse `what`, which adds `size` bytes to the `staged` ones. Promised bytes need no more room."""
        if self._quota and staged + size > self._quota:
            raise ServerRefused(texts.staged_over_quota(self._job, staged + size, self._quota), kind="quota")
        promised = max(0, self._usage.claimed_bytes - self._usage.held_bytes)
        if size > promised:
            self._budget.check(size, what, instead_of=promised)
