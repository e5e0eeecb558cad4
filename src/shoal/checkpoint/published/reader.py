"""Reads a published checkpoint back as a state: every piece is checked and put in its place, all or none.

Whatever is wrong is a `CheckpointUnusable` that names the file. Not here: which checkpoint to take (`catalogue`), and
loading the state into models (`shoal.training`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy
import torch

from shoal.checkpoint.parts.part_file import Header, read_header
from shoal.checkpoint.parts.part_writer import checksum
from shoal.checkpoint.published.manifest import Manifest, StoredSlice, TensorEntry
from shoal.checkpoint.state_tree import Tree, dtype_named, unflatten_named
from shoal.checkpoint.stores.store import Store
from shoal.errors import CheckpointUnusable, WireError

STRETCH = 64 * 2**20  # bytes of several pieces that are read at once


def read_state(store: Store, manifest: Manifest, *, wanted: Callable[[str], bool] | None = None) -> Tree:
    """Read the whole state. Tensors whose name is not `wanted` are not read; their contents are arbitrary."""
    tensors = [_empty(manifest, entry) for entry in manifest.tensors]
    for file in manifest.files:
        pieces = [
            (tensors[number], piece)
            for number, entry in enumerate(manifest.tensors)
            for piece in entry.pieces
            if piece.file == file.name and (wanted is None or wanted(entry.name))
        ]
        if pieces:
            _read_file(store, f"{manifest.checkpoint}/{file.name}", file.size, pieces)
    try:
        return unflatten_named(bytes(manifest.about.tree), tensors)
    except WireError as error:
        raise CheckpointUnusable(f"{manifest.checkpoint}: {error}") from None


def _empty(manifest: Manifest, entry: TensorEntry) -> torch.Tensor:
    """Memory for a tensor, after checking that its pieces add up to it."""
    try:
        dtype = dtype_named(entry.dtype)
    except WireError as error:
        raise CheckpointUnusable(f"{manifest.checkpoint}: {entry.name}: {error}") from None
    size = math.prod(entry.shape) * dtype.itemsize
    if min(entry.shape, default=1) < 0 or sum(piece.size for piece in entry.pieces) != size:
        raise CheckpointUnusable(f"{manifest.checkpoint}: the pieces of {entry.name} are not the whole tensor")
    return torch.empty(entry.shape, dtype=dtype)


def _read_file(store: Store, name: str, size: int, pieces: list[tuple[torch.Tensor, StoredSlice]]) -> None:
    where = f"{name} in {store.place}"
    try:
        found = store.size(name)
        if found != size:
            raise CheckpointUnusable(f"{where} has {found} bytes; it should have {size}")
        header = read_header(store, name)
        for stretch in _stretches(header, pieces, where):
            begin, end = header.data_start + stretch[0].begin, header.data_start + stretch[-1].end
            data = memoryview(store.read(name, begin, end))
            for one in stretch:
                at = header.data_start + one.begin - begin
                _check_and_place(one, data[at : at + one.piece.size], where)
    except FileNotFoundError:
        raise CheckpointUnusable(f"{name} is missing from {store.place}") from None
    except OSError as error:
        raise CheckpointUnusable(f"{where} cannot be read: {error.strerror or error}") from None
    except WireError as error:
        raise CheckpointUnusable(f"{where} is damaged: {error}") from None


@dataclass(frozen=True)
class _Found:
    """A piece and where its bytes are, counted from the first tensor's."""

    tensor: torch.Tensor
    piece: StoredSlice
    begin: int
    end: int


def _stretches(header: Header, pieces: list[tuple[torch.Tensor, StoredSlice]], where: str) -> Iterator[list[_Found]]:
    """Pieces in the order of the file, some at a time, so that a large file is never in memory as a whole."""
    found = []
    for tensor, piece in pieces:
        entry = header.entries.get(piece.key)
        if entry is None or entry.end - entry.begin != piece.size:
            raise CheckpointUnusable(f"{where} is damaged: its header does not have {piece.key} as the manifest does")
        found.append(_Found(tensor, piece, entry.begin, entry.end))
    stretch: list[_Found] = []
    for one in sorted(found, key=lambda one: (one.begin, one.end)):
        if stretch and (one.begin != stretch[-1].end or one.end - stretch[0].begin > STRETCH):
            yield stretch
            stretch = []
        stretch.append(one)
    if stretch:
        yield stretch


def _check_and_place(one: _Found, data: memoryview, where: str) -> None:
    if len(data) != one.piece.size or checksum(data) != one.piece.checksum:
        raise CheckpointUnusable(f"{where} is damaged: the checksum of {one.piece.key} is another one")
    _place(one.tensor, one.piece, data)


def _place(tensor: torch.Tensor, piece: StoredSlice, data: memoryview) -> None:
    where = tuple(slice(start, start + count) for start, count in zip(piece.offset, piece.shape, strict=True))
    target = tensor[where] if where else tensor
    if tuple(target.shape) != piece.shape or len(data) != target.numel() * target.element_size():
        raise CheckpointUnusable(f"{piece.file}: {piece.key} lies outside its tensor")
    if not len(data):
        return
    # Rows of a tensor are one stretch of memory; only cuts in other dimensions need a copy of their own.
    part = target if target.is_contiguous() else torch.empty(piece.shape, dtype=tensor.dtype)
    numpy.copyto(part.reshape(-1).view(torch.uint8).numpy(), numpy.frombuffer(data, dtype=numpy.uint8))
    if part is not target:
        target.copy_(part)
