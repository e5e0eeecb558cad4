"""How much memory a server may use, and what it says when that would be too little. Pure."""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import ServerRefused


class MemoryBudget:
    """Bytes of parameters, state and staged pushes of all jobs of one server."""

    def __init__(self, server: int, limit: int, held: Callable[[], int]) -> None:
        """`limit` 0: none. `held` says what is held now."""
        self._server = server
        self.limit = limit
        self._held = held

    def check(self, wanted: int, what: str, *, instead_of: int = 0) -> None:
        """Refuses `wanted` more bytes for `what` if they are too many. So many of those held now go for them."""
        if not self.limit:
            return
        held = self._held() - instead_of
        if held + wanted > self.limit:
            raise ServerRefused(
                f"server {self._server} has no room for {what}: it takes {_mebibytes(wanted)} and the server holds "
                f"{_mebibytes(held)} of the {_mebibytes(self.limit)} that it may; start more servers, give them more "
                "(--server-memory), or use fewer replicas",
                kind="memory",
            )


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
