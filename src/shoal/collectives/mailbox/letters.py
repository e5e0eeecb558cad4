"""What two mailboxes say to each other: the fixed header that precedes the bytes of a message. Pure.

A short message travels with its letter (MESSAGE). A long message is offered (OFFER) with at most some of its bytes, so
that a message that nobody receives yet costs little. The receiver then reads it in the sender's memory and says so
(DONE), or asks for the rest (GO), which the sender sends (DATA). Letters of one direction of a pair arrive in order.
Not here: how letters travel (`lane`).
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from shoal.collectives.dtypes import CODES, name_of
from shoal.errors import WireError

# kind, dtype; bytes that follow, tag, number, size, address
_LAYOUT = struct.Struct("<BB6xQqQQQ")
LETTER_BYTES = _LAYOUT.size
MOST_BYTES = 1 << 48  # of one message; no memory is larger
SMALLEST_TAG, LARGEST_TAG = -(2**63), 2**63 - 1

_ITEM_BYTES = {code: dtype.itemsize for dtype, code in CODES.items()}


class LetterKind(enum.IntEnum):
    """A number never gets another meaning. 0 is no letter: it marks the unused rest of a ring."""

    MESSAGE = 1  # a whole message follows
    OFFER = 2  # a message lies at `address` of the sender's memory, or the receiver can ask for it
    GO = 3  # the receiver has a place for offer `number`
    DATA = 4  # bytes of offer `number` follow
    DONE = 5  # the receiver has read offer `number` in the sender's memory
    REFUSED = 6  # offer `number` differs from the receive, whose dtype and size this letter has
    TAKEN = 7  # `size`: the cost of the short messages received since the last letter of this kind


class Letter(NamedTuple):
    kind: int  # a `LetterKind`; a plain number because it is compared for every message
    dtype: int = 0  # code of the element type
    length: int = 0  # bytes that follow this letter
    tag: int = 0
    number: int = 0  # of the message in its direction of the pair, from 0
    size: int = 0  # bytes of the whole message
    address: int = 0  # of the message in the sender's memory


def pack(letter: Letter) -> bytes:
    return _LAYOUT.pack(*letter)


def pack_into(memory: memoryview, offset: int, letter: Letter) -> None:
    _LAYOUT.pack_into(memory, offset, *letter)


def copied_from(memory: memoryview | bytearray, offset: int) -> Letter:
    """Read the letter once, whatever it holds. The caller checks it before use."""
    return Letter._make(_LAYOUT.unpack_from(memory, offset))


def unpack_from(memory: memoryview | bytearray, offset: int, *, most: int) -> Letter:
    """Raise a `WireError` if this is no letter. `most`: bytes that may follow a letter other than DATA."""
    return checked(copied_from(memory, offset), most=most)


def checked(letter: Letter, *, most: int) -> Letter:
    if not LetterKind.MESSAGE <= letter.kind <= LetterKind.TAKEN:
        raise WireError(f"a letter has {letter.kind} as its kind; known are {[kind.value for kind in LetterKind]}")
    if letter.size > MOST_BYTES or letter.length > MOST_BYTES:
        raise WireError(f"a letter is of {letter.length} bytes out of {letter.size}; at most {MOST_BYTES} are allowed")
    if letter.kind == LetterKind.DATA:
        return letter
    if letter.length > min(most, letter.size) or (letter.kind == LetterKind.MESSAGE and letter.length < letter.size):
        raise WireError(f"a letter announces {letter.length} bytes of {letter.size}; at most {most} are allowed")
    return letter


def describe(dtype: int, size: int) -> str:
    """A message described for an error text."""
    item = _ITEM_BYTES.get(dtype, 1)
    return f"{size // item} elements of {name_of(dtype)} ({size} bytes)"
