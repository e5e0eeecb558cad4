"""A captured part as a safetensors file: checksums, index, header, bytes. Runs in the background."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import xxhash

from shoal.checkpoint.parts.capture import Capture
from shoal.checkpoint.parts.part_file import encode_header
from shoal.checkpoint.published.manifest import INDEX_KEY, About, PartIndex, StoredSlice, TensorEntry
from shoal.checkpoint.stores.store import Store

CHUNK = 8 * 2**20  # bytes handed to the store at once


def checksum(data: memoryview) -> str:
    return xxhash.xxh3_64(data).hexdigest()


def write_part(store: Store, name: str, capture: Capture, about: About | None) -> int:
    """Write `name` (checkpoint/file) and return its size in bytes. Raises OSError."""
    file = name.rpartition("/")[2]
    pieces: dict[int, list[StoredSlice]] = {}
    for piece in capture.pieces:
        pieces.setdefault(piece.tensor, []).append(
            StoredSlice(
                file=file,
                key=piece.stored.key,
                offset=piece.offset,
                shape=piece.shape,
                size=piece.stored.size,
                checksum=checksum(capture.data(piece)),
            )
        )
    index = PartIndex(
        tensors=tuple(
            TensorEntry(name=name, dtype=dtype, shape=shape, pieces=tuple(pieces.get(number, ())))
            for number, (name, dtype, shape) in enumerate(capture.layout.tensors)
        ),
        about=about,
    )
    metadata = {"format": "pt", INDEX_KEY: msgspec.json.encode(index).decode()}
    header = encode_header([piece.stored for piece in capture.pieces], metadata)
    store.write(name, _chunks(header, capture.memory.data))
    return len(header) + capture.memory.nbytes


def _chunks(header: bytes, data: memoryview) -> Iterator[bytes | memoryview]:
    yield header
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]
