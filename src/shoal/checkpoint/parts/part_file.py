"""Framing of part files: the safetensors format, read and written without torch.

A file is 8 bytes with the length of a JSON header, the header, and the tensors' bytes, end to end. Any version of the
safetensors library reads what is written here. A dtype that some versions lack is stored as another one: complex
numbers as pairs of real ones, with one more dimension at the end, the rest as bytes. The manifest has the true dtype.
Not here: what the tensors are (`manifest`), and their bytes (`part_writer`, `reader`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shoal.bounds import MOST_ITEMS, Name, Shape, Size
from shoal.checkpoint import texts
from shoal.checkpoint.stores.direct_write import BLOCK
from shoal.checkpoint.stores.store import Buffer, Store
from shoal.errors import UsageError, WireError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
FIRST_READ = 256 * 1024  # bytes; most headers are shorter, so that one request to a store is enough
METADATA = "__metadata__"

# torch's name: name in the file, how many of those make one element
_STORED_AS: dict[str, tuple[str, int]] = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "uint16": ("U16", 1),
    "int16": ("I16", 1),
    "uint32": ("U32", 1),
    "int32": ("I32", 1),
    "uint64": ("U64", 1),
    "int64": ("I64", 1),
    "float16": ("F16", 1),
    "bfloat16": ("BF16", 1),
    "float32": ("F32", 1),
    "float64": ("F64", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e4m3fnuz": ("U8", 1),
    "float8_e5m2fnuz": ("U8", 1),
    "float8_e8m0fnu": ("U8", 1),
    "float4_e2m1fn_x2": ("U8", 1),
    "complex32": ("F16", 2),
    "complex64": ("F32", 2),
    "complex128": ("F64", 2),
}
_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2} | {
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, or a slice of one, that goes into a file."""

    key: str  # name in the file
    dtype: str  # torch's name: float32
    shape: tuple[int, ...]
    size: int  # bytes


class TensorHeader(msgspec.Struct, frozen=True):
    """What a file says of one of its tensors."""

    dtype: str  # safetensors' name: F32
    shape: tuple[int, ...]
    begin: int  # of its bytes, counted from the header's `data_start`
    end: int


@dataclass(frozen=True)
class Header:
    entries: dict[str, TensorHeader]  # by key
    metadata: dict[str, str]
    data_start: int  # bytes before the first tensor

    @property
    def file_size(self) -> int:
        """The size that the file must have, in bytes."""
        return self.data_start + max((entry.end for entry in self.entries.values()), default=0)


class _RawEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Name
    shape: Shape
    data_offsets: tuple[Size, Size]


_Header = Annotated[dict[Name, msgspec.Raw], Meta(max_length=MOST_ITEMS)]
_Metadata = Annotated[dict[Name, Annotated[str, Meta(max_length=MAX_HEADER_BYTES)]], Meta(max_length=MOST_ITEMS)]
_header_decoder: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(_Header)
_entry_decoder: msgspec.json.Decoder[_RawEntry] = msgspec.json.Decoder(_RawEntry)
_metadata_decoder: msgspec.json.Decoder[dict[str, str]] = msgspec.json.Decoder(_Metadata)


def stored_as(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape that a tensor with torch's `dtype` has in the file."""
    if dtype not in _STORED_AS:
        raise UsageError(texts.unknown_dtype(dtype))
    name, count = _STORED_AS[dtype]
    return name, shape if count == 1 else (*shape, count)


def encode_header(entries: Sequence[StoredTensor], metadata: Mapping[str, str]) -> bytes:
    """Encode everything before the tensors' bytes, which follow in the order of `entries` without gaps."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    position = 0
    for entry in entries:
        dtype, shape = stored_as(entry.dtype, entry.shape)
        if entry.key in header or math.prod(shape) * _BYTES[dtype] != entry.size:
            raise ValueError(f"{entry.key}: a second one, or {entry.size} bytes for {entry.dtype} {entry.shape}")
        header[entry.key] = {"dtype": dtype, "shape": shape, "data_offsets": (position, position + entry.size)}
        position += entry.size
    text = msgspec.json.encode(header)
    # The tensors' bytes begin on a block boundary, so that they can be written past the page cache.
    text += b" " * (-(LENGTH_BYTES + len(text)) % BLOCK)
    if len(text) > MAX_HEADER_BYTES:
        raise UsageError(texts.header_too_long(len(text), MAX_HEADER_BYTES))
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def header_bytes(start: Buffer) -> int:
    """How many bytes come before the tensors, according to the first eight bytes of the file."""
    if len(start) < LENGTH_BYTES:
        raise WireError(f"a file of {len(start)} bytes is no safetensors file")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise WireError(f"its header would have {length} bytes; 2 to {MAX_HEADER_BYTES} are allowed")
    return LENGTH_BYTES + length


def decode_header(data: Buffer) -> Header:
    """Decode the header from a file's first bytes; the bytes of its tensors may be missing."""
    data_start = header_bytes(data)
    if len(data) < data_start:
        raise WireError(f"the file ends after {len(data)} bytes; its header alone should have {data_start}")
    try:
        raw = _header_decoder.decode(data[LENGTH_BYTES:data_start])
        metadata = _metadata_decoder.decode(raw.pop(METADATA, b"{}"))
        entries = {key: _entry(key, _entry_decoder.decode(value)) for key, value in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"its header is not one of safetensors: {error}") from None
    position = 0
    for key, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise WireError(f"{key!r} begins at byte {entry.begin}; the tensor before it ends at {position}")
        position = entry.end
    return Header(entries=entries, metadata=metadata, data_start=data_start)


def _entry(key: str, raw: _RawEntry) -> TensorHeader:
    begin, end = raw.data_offsets
    if raw.dtype not in _BYTES:
        raise WireError(f"{key!r} has the dtype {raw.dtype!r}, which is not used in checkpoints")
    if min(raw.shape, default=0) < 0 or begin < 0 or end - begin != math.prod(raw.shape) * _BYTES[raw.dtype]:
        raise WireError(f"{key!r} has {end - begin} bytes from {begin} on for {raw.dtype} {list(raw.shape)}")
    return TensorHeader(dtype=raw.dtype, shape=raw.shape, begin=begin, end=end)


def read_header(store: Store, name: str) -> Header:
    """Read a file's header, not its tensors. WireError: no such header; OSError: the file cannot be read."""
    start = store.read(name, 0, FIRST_READ)
    if (length := header_bytes(start)) > len(start):
        start = store.read(name, 0, length)
    return decode_header(start)
