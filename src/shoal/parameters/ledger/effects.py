"""What an entry of a job's ledger makes a server do, in the order in which they are given. Pure values.

Every server gets the same effects from the same entries; what a server does about one is `space`'s.
"""

from __future__ import annotations

import dataclasses
import enum

from shoal.wire.ledger_entries import AnyAnswer
from shoal.wire.tables import Number, PushId, PushTerms


@dataclasses.dataclass(frozen=True)
class Reply:
    """The worker's request is decided. Home tells it, once enough servers have the entry."""

    worker: int
    answer: AnyAnswer


@dataclasses.dataclass(frozen=True)
class Update:
    """One optimizer step with the sum of staged gradients, each times its scale; without any, it only counts."""

    number: int  # of the entry
    pushes: tuple[PushId, ...]  # whose gradients count, in the order in which they are summed
    terms: tuple[PushTerms, ...]  # of each
    scales: tuple[float, ...]  # what each gradient is multiplied by: its own scale, and staleness where that scales it
    lr_factor: float  # what the groups' learning rates are multiplied by
    updates: int  # how many there are with this one

    def groups(self, optimizer: int) -> tuple[dict[str, Number], ...]:
        """Values of an optimizer's groups: the first push's that has any. None: it takes no step."""
        return next((found for terms in self.terms if (found := _of(terms, optimizer))), ())

    def summands(self, optimizer: int) -> tuple[int, ...]:
        """Which of `pushes` (by index) have gradients for an optimizer."""
        return tuple(index for index, terms in enumerate(self.terms) if _of(terms, optimizer))

    @property
    def clip_norms(self) -> tuple[float | None, ...]:
        """By optimizer; servers clip their sum by its norm over all of them before they apply it."""
        return self.terms[0].clip_norms if self.terms else ()

    @property
    def is_clipped(self) -> bool:
        return any(norm is not None for norm in self.clip_norms)


@dataclasses.dataclass(frozen=True)
class Replace:
    """What is staged as this push replaces values and state."""

    number: int
    push: PushId
    updates: int  # that the new values stand for


@dataclasses.dataclass(frozen=True)
class Drop:
    """These pushes will never be applied: what is staged of them may go."""

    pushes: tuple[PushId, ...]


@dataclasses.dataclass(frozen=True)
class Begun:
    """A version of the map begins in the ledger: what was staged under earlier ones goes, and blocks move."""

    number: int
    view: int


@dataclasses.dataclass(frozen=True)
class LedgerEnded:
    """An entry could not be applied, on any server: the job is over, and what is held of it goes."""

    number: int
    reason: str


Effect = Reply | Update | Replace | Drop | Begun | LedgerEnded


class MayRead(enum.Enum):
    """May a worker have values now?"""

    NOW = "now"
    WAIT = "wait"  # it is too far ahead of the slowest
    MEET = "meet"  # it is, and all are called to a meeting that it has not attended: it should go there instead


def _of(terms: PushTerms, optimizer: int) -> tuple[dict[str, Number], ...]:
    return terms.groups[optimizer] if optimizer < len(terms.groups) else ()
