"""Long messages where cores are few: the sender, which would only wait, puts pieces where its receiver sees them.

Two copies in user space take less time than the kernel's one, which looks up every page. The sender puts pieces into
order from the front while it waits for the message, and the receiver takes them. The receiver itself reads the rest out
of the sender's memory, from the end. So neither depends on the other, and a peer that leaves is noticed as usual. There
is one passage in each direction of a pair, for one message at a time. The loops are in C (`native/stage.h`); without
the C extension there is no passage. Not here: which thread gives and takes (`mailbox_progress`), the layout
(`neighbour`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, Self

from shoal.collectives.mailbox.delivery import Delivery, OfferCopy
from shoal.errors import PeerLost
from shoal.transport.memory import memory_order
from shoal.transport.native import native
from shoal.transport.native_layout import GIVING, PASSAGE_PIECE, PASSAGE_SLOTS, TAKEN, UNTIL

PIECE_BYTES = PASSAGE_PIECE
PASSAGE_BYTES = PASSAGE_SLOTS * PASSAGE_PIECE  # stays in the cache
# Bytes; reading a shorter message takes less time than waking the sender once more.
SHORTEST = 4 * 1024 * 1024
_NUMBERS = 2**32 - 1


class Places(NamedTuple):
    """Addresses in this process."""

    own_line: int  # the neighbour's line in our arena
    its_line: int  # our line in its arena
    own_state: int
    its_state: int
    own_slots: int  # pieces that we put there for it
    its_slots: int  # pieces that it puts there for us


class SharedSlots:
    """Both directions with one neighbour."""

    def __init__(self, native: ModuleType, places: Places, wake: Callable[[], None]) -> None:
        """`wake` wakes the neighbour, if it sleeps."""
        self._native = native
        lines = places[:4]
        self._giving_at, self._taking_at = (*lines, places.own_slots), (*lines, places.its_slots)
        self._line = (ctypes.c_uint64 * (UNTIL + 1)).from_address(places.own_line)
        self._wake = wake
        self._given: Delivery | None = None  # the send whose pieces lie in our slots, until it is done
        self._taken: OfferCopy | None = None  # the copy whose pieces we take, until it ends

    @classmethod
    def open(cls, places: Places, wake: Callable[[], None]) -> Self | None:
        return None if native is None else cls(native, places, wake)

    # With the mailbox's guard held

    def offers(self, delivery: Delivery) -> bool:
        """Whether this send has our slots from now on. If so, its receiver may count on us to fill them."""
        if self._given is None or self._given.is_done:
            self._given = delivery
        self.attend(self._given is delivery)
        return self._given is delivery

    def attend(self, is_there: bool) -> None:
        """Say whether a thread of this rank puts pieces into it, or will when it is woken."""
        self._line[GIVING] = is_there

    def accepts(self, pull: OfferCopy) -> bool:
        """Whether this message has the neighbour's slots from now on."""
        if self._taken is not None or pull.delivery.size < SHORTEST:
            return False
        self._taken = pull
        self.claim(pull)
        if memory_order.is_weak:
            memory_order.fence()
        self._line[TAKEN] = _number(pull.letter.number) << 32  # tells the sender that this message is being taken
        return True

    def claim(self, pull: OfferCopy) -> None:
        """Tell the sender not to put pieces into it beyond the copy's end, which the receiver reads itself."""
        if self._taken is pull:
            self._line[UNTIL] = -(-pull.end // PIECE_BYTES)

    def release(self, pull: OfferCopy) -> None:
        if self._taken is pull:
            self._taken = None

    # Without the guard; one thread at a time in each direction

    def give(self, delivery: Delivery) -> bool:
        """Put pieces into it while there is room, and more as they are taken. False: there was nothing to do."""
        number = _number(delivery.number)
        return bool(self._native.give(self._giving_at, delivery.address, delivery.size, number))

    def take(self, pull: OfferCopy) -> int:
        """Take pieces that are there, and more as they come. Returns how many bytes from the front are here now."""
        self._wake()
        to = pull.delivery
        pieces: int = self._native.take(self._taking_at, to.address, to.size, _number(pull.letter.number))
        if pieces < 0:
            raise PeerLost(f"rank {pull.source} left before its message was read", peer=pull.source)
        return min(pieces * PIECE_BYTES, to.size)


def _number(number: int) -> int:
    """A message's number as the passage writes it: 32 bits, and 0 means no message."""
    return number % _NUMBERS + 1
