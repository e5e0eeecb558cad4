"""The interface of a lane: how a mailbox's letters get to some of the other ranks and back.

A lane decides nothing: it carries letters in order per direction of a pair, and tells its recipient what came and who
left. All calls come with the mailbox's guard held, but for `has_mail` and `pull`. Implementations: `memory_lane`
(ranks of this machine), `tcp_lane` (others).
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.letters import Letter
from shoal.collectives.mailbox.pieces import Stage
from shoal.transport.mesh.ending import Ending


class Recipient(Protocol):
    """What a lane calls while it collects."""

    def letter(self, source: int, letter: Letter, payload: int) -> None:
        """Any but DATA; what travels with it lies at address `payload` until this returns."""

    def begin(self, source: int, letter: Letter) -> memoryview:
        """The same before its bytes have come, and DATA: where they belong. Nothing else comes from there meanwhile."""

    def end(self, source: int, letter: Letter) -> None:
        """They are there."""

    def posted(self, delivery: Delivery) -> None:
        """A send that had to wait has left: its memory is free to change."""

    def ended(self, rank: int, ending: Ending, why: str) -> None:
        """A peer is gone; nothing more comes from it. `why` is for people and may be empty."""


class Lane(ABC):
    peers: Collection[int]  # ranks
    most_inline: int  # bytes of the longest message that travels with its letter
    most_ahead: int  # bytes of a longer one that travel with its offer
    is_local: bool  # its peers are on this machine, and compete for its cores
    reads_memory: bool  # whether offers are read where they lie

    @abstractmethod
    def post(self, target: int, letter: Letter, delivery: Delivery | None = None) -> bool:
        """Send a letter, and the bytes of the delivery that travel with it.

        True: they have left. False: they wait; of a MESSAGE or DATA that is told with `posted` later.
        """

    @abstractmethod
    def watch(self, epoll: select.epoll) -> None:
        """Called once: what is slept on. Whatever needs `collect` wakes it, but what comes while nobody sleeps."""

    @abstractmethod
    def collect(self, recipient: Recipient, ready: Sequence[tuple[int, int]]) -> None:
        """Take in what has come and send what had to wait. `ready`: what the epoll says, of all lanes."""

    @property
    @abstractmethod
    def is_streaming(self) -> bool:
        """Long messages are on their way in pieces: the next one takes longer than going to sleep."""

    @abstractmethod
    def has_mail(self) -> bool:
        """Something has come that the epoll may not show."""

    @abstractmethod
    def sleep(self, is_asleep: bool) -> None:
        """From now on somebody sleeps, or nobody does: peers need not ring then."""

    @abstractmethod
    def pull(self, source: int, there: int, here: int, size: int) -> None:
        """Read bytes at an address of that rank's memory. `ExchangeFailed`: it is gone, or what it said of them is."""

    def stage_of(self, peer: int) -> Stage | None:  # noqa: ARG002  lanes without one need not say so
        """Where long messages to and from it may be put, or None."""
        return None

    @abstractmethod
    def look(self, recipient: Recipient, now: float) -> None:
        """Now and then: is there a peer that has neither left nor lives?"""

    @abstractmethod
    def leave(self, ending: Ending) -> None:
        """Tell the peers, once. Nothing is sent afterwards."""

    @abstractmethod
    def close(self) -> None:
        """Release everything, also in a forked child: nothing is said."""
