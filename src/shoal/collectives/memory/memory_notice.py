"""A rank's notice of an operation, in memory that all ranks of its machine see: packed, copied once, checked. Pure.

A notice holds the statement (the rank's operation, which all ranks compare), the number of pieces of memory that hold
its tensors, whether these are in its slot, and address and size of each. The peer that wrote it may be broken and may
write again at any time: readers make one copy, check every number in it, and use only the copy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import WireError
from shoal.transport.native_layout import (
    ENTRY_BYTES,
    LINE,
    MOST_BYTES,
    MOST_ENTRIES,
    NOTICE_APART,
    NOTICE_BYTES,
    NOTICE_COUNT,
    NOTICE_ENTRIES,
    NOTICE_IN_SLOT,
    NOTICE_SCALE,
    SLOT_BYTES,
    STATEMENT_BYTES,
)
from shoal.wire.frames import HEADER_BYTES

# Statement, count of entries, whether they are in the slot, scale, which entry is left out of the slot.
_HEAD = struct.Struct(f"={STATEMENT_BYTES}sIIdI{NOTICE_ENTRIES - NOTICE_APART - 4}x")
_ENTRY = struct.Struct("=QQ")  # address, bytes
assert (NOTICE_COUNT, NOTICE_IN_SLOT, NOTICE_SCALE, NOTICE_APART) == (
    STATEMENT_BYTES,
    STATEMENT_BYTES + 4,
    STATEMENT_BYTES + 8,
    STATEMENT_BYTES + 16,
)
assert (_HEAD.size, _ENTRY.size) == (NOTICE_ENTRIES, ENTRY_BYTES)


@dataclass(frozen=True)
class Said:
    """One rank's notice of an operation."""

    statement: bytes
    is_in_slot: bool
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]  # bytes

    @property
    def share(self) -> int:
        """Bytes of the slot that each entry has."""
        return share_of(len(self.sizes))


def share_of(entries: int) -> int:
    return SLOT_BYTES // max(1, entries) // LINE * LINE


def pack_notice(memory: memoryview, said: bytes, entries: Sequence[tuple[int, int]], *, is_in_slot: bool) -> None:
    """`entries`: address and bytes of each. These loops use no scale and leave no entry out."""
    _HEAD.pack_into(memory, 0, said, len(entries), is_in_slot, 1.0, 0)
    for number, entry in enumerate(entries):
        _ENTRY.pack_into(memory, NOTICE_ENTRIES + ENTRY_BYTES * number, *entry)


def parse_notice(data: bytes) -> Said:
    """From a copy of the memory. Raises `WireError` for a notice that no working rank writes."""
    assert len(data) == NOTICE_BYTES
    statement, count, in_slot, _, _ = _HEAD.unpack_from(data)
    if count > MOST_ENTRIES or in_slot > 1:
        raise WireError(f"a notice of {count} tensors, {in_slot} as the mark of those that are in the slot")
    entries = list(_ENTRY.iter_unpack(data[NOTICE_ENTRIES : NOTICE_ENTRIES + ENTRY_BYTES * count]))
    for address, size in entries:
        if size > MOST_BYTES or address > 2**64 - 1 - MOST_BYTES:
            raise WireError(f"a notice of a tensor of {size} bytes at address {address:#x}")
    return Said(
        statement[:HEADER_BYTES], bool(in_slot), tuple(each[0] for each in entries), tuple(each[1] for each in entries)
    )
