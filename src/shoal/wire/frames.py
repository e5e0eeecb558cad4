"""The header of a data frame: what precedes the bytes of a tensor between two workers. Pure: bytes in, values out.

The size is fixed, so that a receiver knows how much to read before it trusts anything. Every field is checked before
use, and anything that is no header of ours is a `WireError`. Not here: the payload (`codecs`), who sends what to whom
(`collectives`), and comparing a well-formed header with the expected one (`collectives.schedules.executor`).
"""

from __future__ import annotations

import enum
import struct
from typing import TypeVar

import msgspec

from shoal.errors import Refused, WireError

MAGIC = b"SHOL"
FRAME_VERSION = 2
LABEL_BYTES = 64
MAX_PAYLOAD_BYTES = 1 << 48  # no tensor in a CPU's memory is longer; anything above is garbage
MAX_SEQUENCE = 1 << 62  # operations of a group; no group gets there

# magic, version, codec, kind, reduction, dtype, length of the label;
# generation, sequence, turn, transfer, elements, payload, label padded with zeros
_LAYOUT = struct.Struct("!4sBBBBBBIQIIQQ64s")
HEADER_BYTES = _LAYOUT.size
COUNTS = slice(10, 46)  # the bytes of generation, sequence, turn, transfer, elements and payload
pack_counts = struct.Struct("!IQIIQQ").pack
WAITING = 2**32 - 1  # transfer number of a frame without data, which says in which operation its sender waits

Code = TypeVar("Code", bound=enum.IntEnum)


class FrameKind(enum.IntEnum):
    """Which operation a frame belongs to. A number never gets another meaning."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    POINT_TO_POINT = 5
    ALL_TO_ALL = 6


class ReductionCode(enum.IntEnum):
    NONE = 0
    SUM = 1
    MAX = 2
    MIN = 3
    PRODUCT = 4
    AND = 5
    OR = 6
    XOR = 7


class FrameHeader(msgspec.Struct, frozen=True, kw_only=True):
    kind: FrameKind
    reduction: ReductionCode
    codec: int  # wire id of the codec, 0..255
    dtype: int  # code of the element type, 0..255; the table is in `collectives.dtypes`
    generation: int
    sequence: int  # number of the operation in its group, from 0 (point-to-point: in its direction of the pair)
    turn: int = 0  # number of the turn, where an operation is carried out in several
    transfer: int  # number of the transfer in the operation's schedule, or WAITING
    elements: int  # of the whole turn, not of this transfer
    payload: int  # bytes that follow this header
    label: str  # what the operation is for; cut to 64 bytes on the wire


def cut_label(label: str) -> str:
    """The label as it arrives: at most 64 bytes of UTF-8, cut between characters; surrogates become '?'."""
    if len(label) <= LABEL_BYTES and label.isascii():
        return label
    encoded = label.encode("utf-8", "replace")
    if len(encoded) <= LABEL_BYTES:
        return encoded.decode("utf-8")
    return encoded[:LABEL_BYTES].decode("utf-8", "ignore")


def pack(header: FrameHeader) -> bytes:
    label = cut_label(header.label).encode()
    try:
        return _LAYOUT.pack(
            MAGIC,
            FRAME_VERSION,
            header.codec,
            header.kind,
            header.reduction,
            header.dtype,
            len(label),
            header.generation,
            header.sequence,
            header.turn,
            header.transfer,
            header.elements,
            header.payload,
            label,
        )
    except struct.error as error:
        raise WireError(f"a frame header cannot hold {header}: {error}") from None


def unpack(data: bytes | bytearray | memoryview, *, generation: int) -> FrameHeader:
    """The header in exactly `HEADER_BYTES` bytes. A well-formed header of another generation is `Refused`."""
    if len(data) != HEADER_BYTES:
        raise WireError(f"a frame header has {HEADER_BYTES} bytes, not {len(data)}")
    magic, version, codec, kind, reduction, dtype, label_bytes, number, *counts, label = _LAYOUT.unpack(data)
    sequence, turn, transfer, elements, payload = counts
    if magic != MAGIC:
        raise WireError(f"a frame starts with {magic!r} instead of {MAGIC!r}: the stream is not Shoal's or out of step")
    if version != FRAME_VERSION:
        raise WireError(f"a frame has version {version}; this program speaks {FRAME_VERSION}: install the same Shoal")
    if payload > MAX_PAYLOAD_BYTES or elements > MAX_PAYLOAD_BYTES:
        raise WireError(
            f"a frame announces {payload} bytes and {elements} elements; at most {MAX_PAYLOAD_BYTES} are allowed"
        )
    if sequence > MAX_SEQUENCE:
        raise WireError(f"a frame is of operation {sequence}; the last one there can be is {MAX_SEQUENCE}")
    header = FrameHeader(
        kind=_known(FrameKind, kind),
        reduction=_known(ReductionCode, reduction),
        codec=codec,
        dtype=dtype,
        generation=number,
        sequence=sequence,
        turn=turn,
        transfer=transfer,
        elements=elements,
        payload=payload,
        label=_text(label, label_bytes),
    )
    if number != generation:
        raise Refused(f"a frame of generation {number} arrived in generation {generation}: it was not used")
    return header


def _known(codes: type[Code], value: int) -> Code:
    try:
        return codes(value)
    except ValueError:
        raise WireError(
            f"a frame has {value} as {codes.__name__}; known are {[code.value for code in codes]}"
        ) from None


def _text(padded: bytes, length: int) -> str:
    if length > LABEL_BYTES or any(padded[length:]):
        raise WireError(f"a frame's label claims {length} bytes and holds {padded!r}")
    try:
        return padded[:length].decode("utf-8")
    except UnicodeDecodeError:
        raise WireError(f"a frame's label is not UTF-8: {padded[:length]!r}") from None
