"""Messages on their way to a receive: those that wait, and copies to be made out of a neighbour's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.letters import Letter
from shoal.errors import ExchangeFailed

if TYPE_CHECKING:
    from shoal.collectives.mailbox.pieces import Stage


class Message:
    """One that arrived, or has begun to, before a receive was there for it."""

    def __init__(self, letter: Letter, data: bytes | bytearray, *, is_whole: bool) -> None:
        self.letter = letter
        self.data = data  # what travels with the letter
        self.is_whole = is_whole  # all of that is there
        self.delivery: Delivery | None = None  # the receive that came before that


class Pull:
    """A copy to be made, bytes of an offer out of its sender's memory: piece by piece, by one thread or several."""

    def __init__(self, delivery: Delivery, source: int, letter: Letter) -> None:
        self.delivery = delivery
        self.source = source
        self.letter = letter
        self.workers = 0  # threads that copy
        self.error: ExchangeFailed | None = None
        self.stage: Stage | None = None  # where its sender may put some of it
        self.front = 0  # bytes from the start that came over the stage
        self.end = delivery.size  # from here on somebody has copied or copies

    def next_piece(self, most: int, last: int) -> tuple[int, int] | None:
        """Start and size of what nobody has taken yet, unless it is the `last` so many bytes. None: that is all."""
        if self.end - self.front <= last or self.error is not None:
            return None
        stop, self.end = self.end, max(self.front, (self.end - 1) // most * most)
        return self.end, stop - self.end
