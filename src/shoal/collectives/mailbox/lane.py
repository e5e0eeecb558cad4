"""The interface of a lane: how a mailbox's letters get to some of the other ranks and back.

A lane decides nothing: it carries letters in order per direction of a pair, and tells its recipient what arrived and
which peers left. The caller holds the mailbox's guard, except for `has_mail` and `pull`. Implementations: `memory_lane`
(ranks of this machine), `tcp_lane` (others).
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.letters import Letter
from shoal.collectives.mailbox.pieces import SharedSlots
from shoal.transport.mesh.stream_ending import StreamEnding


class Recipient(Protocol):
    """What a lane calls while it collects."""

    def letter(self, source: int, letter: Letter, payload: int) -> None:
        """A letter of any kind but DATA has arrived. Its bytes lie at address `payload` until this returns."""

    def begin(self, source: int, letter: Letter) -> memoryview:
        """DATA, or another letter whose bytes have not all arrived. Returns where to put them; then comes `end`."""

    def end(self, source: int, letter: Letter) -> None:
        """The bytes have all arrived. No other letter came from this source since `begin`."""

    def posted(self, delivery: Delivery) -> None:
        """A send that had to wait has left: its memory is free to change."""

    def ended(self, rank: int, ending: StreamEnding, why: str) -> None:
        """A peer is gone; nothing more comes from it. `why`: for error texts, or empty."""


class Lane(ABC):
    peers: Collection[int]  # ranks
    most_inline: int  # bytes of the longest message that travels with its letter
    most_ahead: int  # bytes of a longer message that travel with its offer
    is_local: bool  # the peers are on this machine and compete for its cores
    reads_memory: bool  # whether offers are read directly out of the sender's memory

    @abstractmethod
    def post(self, target: int, letter: Letter, delivery: Delivery | None = None) -> bool:
        """Send a letter, and the bytes of the delivery that travel with it.

        True: they have left. False: they wait; for a MESSAGE or DATA, `posted` is called once they have left.
        """

    @abstractmethod
    def watch(self, epoll: select.epoll) -> None:
        """Called once with the epoll to sleep on. Events that need `collect` wake it while a thread sleeps."""

    @abstractmethod
    def collect(self, recipient: Recipient, ready: Sequence[tuple[int, int]]) -> None:
        """Take in what has arrived and send what had to wait. `ready`: the epoll's events, for all lanes."""

    @property
    @abstractmethod
    def is_streaming(self) -> bool:
        """Whether long messages are arriving in pieces, so that waiting for the next piece is worth a sleep."""

    @abstractmethod
    def has_mail(self) -> bool:
        """Whether something has arrived that the epoll may not show."""

    @abstractmethod
    def sleep(self, is_asleep: bool) -> None:
        """Say whether a thread sleeps from now on; if none does, peers need not wake this rank."""

    @abstractmethod
    def pull(self, source: int, there: int, here: int, size: int) -> None:
        """Read bytes at an address of a peer's memory. `ExchangeFailed`: the peer or the memory it named is gone."""

    def passage_of(self, peer: int) -> SharedSlots | None:  # noqa: ARG002  lanes without one need not say so
        """The passage for long messages to and from a peer, or None."""
        return None

    @abstractmethod
    def look(self, recipient: Recipient, now: float) -> None:
        """Called now and then: look for peers that have died without leaving."""

    @abstractmethod
    def leave(self, ending: StreamEnding) -> None:
        """Tell the peers once that this rank leaves. Nothing is sent afterwards."""

    @abstractmethod
    def close(self) -> None:
        """Release everything without telling the peers; also for a forked child."""
