"""Asking the members of a generation to regroup because newcomers wait to be let in. Pure.

Not here: who may be let in (`forming`).
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.membership.core import reasons
from shoal.membership.core.audience import Audience
from shoal.wire.messages import RegroupWish


class RegroupWishes:
    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._newcomers: set[int] = set()  # newcomers that the members were told of

    def wish(self, newcomers: Iterable[int], *, generation: int, members: tuple[int, ...]) -> None:
        """Ask the members once for each waiting newcomer. `members` are clients."""
        waiting = set(newcomers)
        if not waiting <= self._newcomers:
            self._newcomers |= waiting
            self._tell(members, generation)

    def remind(self, client: int, *, generation: int) -> None:
        """A member is back and may have missed the wish."""
        if self._newcomers:
            self._tell((client,), generation)

    def over(self) -> None:
        """The members have regrouped."""
        self._newcomers.clear()

    def _tell(self, clients: tuple[int, ...], generation: int) -> None:
        reason = reasons.wants_in(sorted(self._newcomers))
        self._audience.send(clients, RegroupWish(generation=generation, reason=reason))
