"""How much memory a server may use, and what it says when that would be too little. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.errors import ServerRefused
from shoal.parameters import texts


class MemoryBudget:
    """Bytes of parameters, state and staged pushes of all jobs of one server."""

    def __init__(self, server: int, limit: int, held: Callable[[], int]) -> None:
        """`limit` 0: none. `held` says what is held now, or has been promised."""
        self._server = server
        self.limit = limit
        self._held = held

    def check(self, wanted: int, what: str, *, instead_of: int = 0) -> None:
        """Refuses `wanted` more bytes for `what` if they are too many. So many of those held now go for them."""
        if not self.limit:
            return
        held = self._held() - instead_of
        if held + wanted > self.limit:
            reason = texts.no_room(self._server, what, wanted=wanted, held=held, limit=self.limit)
            raise ServerRefused(reason, kind="memory")


class Usage(Protocol):
    """A job on a server, as far as memory goes."""

    @property
    def held_bytes(self) -> int: ...

    @property
    def claimed_bytes(self) -> int:
        """What it holds, or has been promised; no other job gets these."""


class SpaceBudget:
    """What one job may hold on one server: of the server's memory, and of its own quota for what it stages."""

    def __init__(self, budget: MemoryBudget, job: str, quota: int, usage: Usage) -> None:
        """`quota` 0: none. Parameters and state count against it on all servers together: see `space`."""
        self._budget = budget
        self._job = job
        self._quota = quota
        self._usage = usage

    def check(self, wanted: int, what: str) -> None:
        """Refuses a layout that needs so many bytes in place of what the job has now."""
        self._budget.check(wanted, what, instead_of=self._usage.claimed_bytes)

    def check_staged(self, size: int, staged: int, what: str) -> None:
        """Refuses `what`, which takes `size` bytes besides the `staged` ones. What was promised needs no more room."""
        if self._quota and staged + size > self._quota:
            raise ServerRefused(texts.staged_over_quota(self._job, staged + size, self._quota), kind="quota")
        promised = max(0, self._usage.claimed_bytes - self._usage.held_bytes)
        if size > promised:
            self._budget.check(size, what, instead_of=promised)
