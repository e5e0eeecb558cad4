"""Reads a published checkpoint back as a state: every piece is checked and put in its place.

Anything wrong raises `CheckpointUnusable`, which names the file. Not here: which checkpoint to take (`catalogue`), and
loading the state into models (`shoal.training`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy
import torch

from shoal.checkpoint import texts
from shoal.checkpoint.parts.part_file import Header, read_header
from shoal.checkpoint.parts.part_writer import checksum
from shoal.checkpoint.published.manifest import OWN, Manifest, StoredSlice, TensorEntry, own_prefix
from shoal.checkpoint.state_tree import Tree, dtype_named, unflatten_named
from shoal.checkpoint.stores.store import Store
from shoal.errors import CheckpointUnusable, WireError

STRETCH = 64 * 2**20  # bytes of several pieces that are read at once


def read_state(store: Store, manifest: Manifest, *, wanted: Callable[[str], bool] | None = None) -> Tree:
    """Read the whole state. Tensors whose name is not `wanted` are not read; their contents are arbitrary."""
    entries = [entry for entry in manifest.tensors if not entry.name.startswith(OWN)]
    tensors = [_empty(manifest, entry) for entry in entries]
    chosen = [
        (tensor, entry) for tensor, entry in zip(tensors, entries, strict=True) if wanted is None or wanted(entry.name)
    ]
    _read_tensors(store, manifest, chosen)
    try:
        return unflatten_named(bytes(manifest.about.tree), tensors)
    except WireError as error:
        raise CheckpointUnusable(texts.in_checkpoint(manifest.checkpoint, error)) from None


def read_own(store: Store, manifest: Manifest, rank: int) -> dict[str, torch.Tensor]:
    """The tensors that belong to the worker of that rank alone, by name without the rank."""
    prefix = own_prefix(rank)
    entries = [entry for entry in manifest.tensors if entry.name.startswith(prefix)]
    tensors = [_empty(manifest, entry) for entry in entries]
    _read_tensors(store, manifest, list(zip(tensors, entries, strict=True)))
    return {entry.name.removeprefix(prefix): tensor for tensor, entry in zip(tensors, entries, strict=True)}


def _read_tensors(store: Store, manifest: Manifest, wanted: list[tuple[torch.Tensor, TensorEntry]]) -> None:
    for file in manifest.files:
        pieces = [(tensor, piece) for tensor, entry in wanted for piece in entry.pieces if piece.file == file.name]
        if pieces:
            _read_file(store, f"{manifest.checkpoint}/{file.name}", file.size, pieces)


def _empty(manifest: Manifest, entry: TensorEntry) -> torch.Tensor:
    """Memory for a tensor, after checking that its pieces add up to it."""
    try:
        dtype = dtype_named(entry.dtype)
    except WireError as error:
        raise CheckpointUnusable(texts.in_checkpoint(manifest.checkpoint, f"{entry.name}: {error}")) from None
    size = math.prod(entry.shape) * dtype.itemsize
    if min(entry.shape, default=1) < 0 or sum(piece.size for piece in entry.pieces) != size:
        raise CheckpointUnusable(texts.in_checkpoint(manifest.checkpoint, texts.not_whole(entry.name)))
    return torch.empty(entry.shape, dtype=dtype)


def _read_file(store: Store, name: str, size: int, pieces: list[tuple[torch.Tensor, StoredSlice]]) -> None:
    where = f"{name} in {store.place}"
    try:
        found = store.size(name)
        if found != size:
            raise CheckpointUnusable(texts.of_file(where, texts.wrong_size(found, size)))
        header = read_header(store, name)
        for stretch in _stretches(header, pieces, where):
            begin, end = header.data_start + stretch[0].begin, header.data_start + stretch[-1].end
            data = memoryview(store.read(name, begin, end))
            for one in stretch:
                at = header.data_start + one.begin - begin
                _check_and_place(one, data[at : at + one.piece.size], where)
    except FileNotFoundError:
        raise CheckpointUnusable(texts.missing(name, store.place)) from None
    except OSError as error:
        raise CheckpointUnusable(texts.unreadable(where, error.strerror or error)) from None
    except WireError as error:
        raise CheckpointUnusable(texts.damaged(where, error)) from None


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
            raise CheckpointUnusable(texts.damaged(where, texts.unlike_header(piece.key)))
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
        raise CheckpointUnusable(texts.damaged(where, texts.bad_checksum(one.piece.key)))
    _place(one.tensor, one.piece, data)


def _place(tensor: torch.Tensor, piece: StoredSlice, data: memoryview) -> None:
    where = tuple(slice(start, start + count) for start, count in zip(piece.offset, piece.shape, strict=True))
    target = tensor[where] if where else tensor
    if tuple(target.shape) != piece.shape or len(data) != target.numel() * target.element_size():
        raise CheckpointUnusable(texts.in_checkpoint(piece.file, texts.outside(piece.key, "its tensor")))
    if not len(data):
        return
    # Rows of a tensor are contiguous in memory; only pieces cut in other dimensions need a copy.
    part = target if target.is_contiguous() else torch.empty(piece.shape, dtype=tensor.dtype)
    numpy.copyto(part.reshape(-1).view(torch.uint8).numpy(), numpy.frombuffer(data, dtype=numpy.uint8))
    if part is not target:
        target.copy_(part)
