"""What an entry of a job's ledger makes a server do. A server carries effects out in order. Pure values.

Every server gets the same effects from the same entries. Not here: carrying them out (`space`).
"""

from __future__ import annotations

import dataclasses
import enum

from shoal.wire.ledger_entries import AnyAnswer
from shoal.wire.tables import Number, PushId, PushTerms


@dataclasses.dataclass(frozen=True)
class Reply:
    """The worker's request is decided. Home sends the answer once enough servers have the entry."""

    worker: int
    answer: AnyAnswer


@dataclasses.dataclass(frozen=True)
class Update:
    """One optimizer step with the sum of staged gradients, each times its scale. Without pushes, it only counts."""

    number: int  # of the entry
    pushes: tuple[PushId, ...]  # whose gradients count, in the order in which they are summed
    terms: tuple[PushTerms, ...]  # of each
    scales: tuple[float, ...]  # factor of each gradient: its own scale, and that for staleness if it scales gradients
    lr_factor: float  # factor of the groups' learning rates
    updates: int  # how many there are, including this one

    def groups(self, optimizer: int) -> tuple[dict[str, Number], ...]:
        """Values of an optimizer's groups, from the first push that has any. Empty: the optimizer takes no step."""
        return next((found for terms in self.terms if (found := _of(terms, optimizer))), ())

    def summands(self, optimizer: int) -> tuple[int, ...]:
        """Which of `pushes` (by index) have gradients for an optimizer."""
        return tuple(index for index, terms in enumerate(self.terms) if _of(terms, optimizer))

    @property
    def clip_norms(self) -> tuple[float | None, ...]:
        """By optimizer. Servers clip the summed gradient by its norm over all servers before they apply it."""
        return self.terms[0].clip_norms if self.terms else ()

    @property
    def is_clipped(self) -> bool:
        return any(norm is not None for norm in self.clip_norms)


@dataclasses.dataclass(frozen=True)
class Replace:
    """Values and state are replaced with what is staged as this push."""

    number: int
    push: PushId
    updates: int  # how many updates the new values include


@dataclasses.dataclass(frozen=True)
class Drop:
    """These pushes will never be applied: their staged bytes may be freed."""

    pushes: tuple[PushId, ...]


@dataclasses.dataclass(frozen=True)
class Begun:
    """A version of the map begins in the ledger: pushes staged under earlier versions are dropped, and blocks move."""

    number: int
    view: int


@dataclasses.dataclass(frozen=True)
class LedgerEnded:
    """An entry could not be applied, on any server: the job is over, and servers free what they hold of it."""

    number: int
    reason: str


Effect = Reply | Update | Replace | Drop | Begun | LedgerEnded


class MayRead(enum.Enum):
    """May a worker have values now?"""

    NOW = "now"
    WAIT = "wait"  # the worker is too far ahead of the slowest
    MEET = "meet"  # too far ahead, and called to a meeting that it has not attended: it should go there instead


def _of(terms: PushTerms, optimizer: int) -> tuple[dict[str, Number], ...]:
    return terms.groups[optimizer] if optimizer < len(terms.groups) else ()
