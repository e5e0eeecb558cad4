"""Joins the indexes of a checkpoint's parts into one description of the whole. Pure.

Each worker has planned its own part. Joining shows whether the plans fit: the same tensors in every part, pieces that
cover each tensor exactly once, one description of the state. Not here: reading the parts (`store_publisher`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from shoal.checkpoint import texts
from shoal.checkpoint.parts.part_file import Header, stored_as
from shoal.checkpoint.published.manifest import (
    INDEX_KEY,
    About,
    PartIndex,
    StoredSlice,
    TensorEntry,
    checkpoint_name,
    own_prefix,
)
from shoal.errors import CheckpointUnusable, UsageError

_decoder: msgspec.json.Decoder[PartIndex] = msgspec.json.Decoder(PartIndex)


def index_in(header: Header, *, file: str) -> PartIndex:
    """The index of a part, checked against the part's own header. `file` is its name in the checkpoint."""
    try:
        index = _decoder.decode(header.metadata.get(INDEX_KEY, ""))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointUnusable(texts.no_index(file, error)) from None
    for entry in (*index.tensors, *index.own):
        for piece in entry.pieces:
            if piece.file != file or (misfit := misfit_in(header, entry, piece)):
                what = texts.said_to_be_elsewhere(piece.file) if piece.file != file else misfit
                raise CheckpointUnusable(texts.does_not_fit_its_index(file, piece.key, what))
    return index


def misfit_in(header: Header, entry: TensorEntry, piece: StoredSlice) -> str:
    """How a piece differs from its file's header; empty if it does not."""
    found = header.entries.get(piece.key)
    if found is None:
        return texts.NOT_IN_HEADER
    try:
        wanted = stored_as(entry.dtype, piece.shape)
    except UsageError:
        return texts.dtype_unknown(entry.dtype)
    if (found.dtype, found.shape) != wanted or found.end - found.begin != piece.size:
        return f"is {found.dtype} {list(found.shape)} in the file's header, not {wanted[0]} {list(wanted[1])}"
    return ""


def join(indexes: Sequence[PartIndex], *, checkpoint: str) -> tuple[About, tuple[TensorEntry, ...]]:
    """Join the indexes of all parts, by rank. Raises CheckpointUnusable if they are not one whole state."""
    abouts = [index.about for index in indexes if index.about is not None]
    if len(abouts) != 1:
        raise CheckpointUnusable(texts.in_checkpoint(checkpoint, texts.descriptions(len(abouts))))
    about = abouts[0]
    if checkpoint_name(about.step, about.generation.number) != checkpoint:
        other = texts.of_another_step(about.step, about.generation.number)
        raise CheckpointUnusable(texts.in_checkpoint(checkpoint, other))
    if len({len(index.tensors) for index in indexes}) != 1:
        raise CheckpointUnusable(texts.in_checkpoint(checkpoint, texts.DIFFERENT_COUNTS))
    tensors = []
    for entries in zip(*(index.tensors for index in indexes), strict=True):
        first = entries[0]
        if len({(entry.name, entry.dtype, entry.shape) for entry in entries}) != 1:
            raise CheckpointUnusable(texts.in_checkpoint(checkpoint, texts.disagreement(first.name)))
        joined = msgspec.structs.replace(first, pieces=tuple(piece for entry in entries for piece in entry.pieces))
        if misfit := gap_in(joined):
            raise CheckpointUnusable(texts.in_checkpoint(checkpoint, misfit))
        tensors.append(joined)
    for rank, index in enumerate(indexes):
        for entry in index.own:
            misfit = (
                gap_in(entry) if entry.name.startswith(own_prefix(rank)) else texts.anothers_tensor(entry.name, rank)
            )
            if misfit:
                raise CheckpointUnusable(texts.in_checkpoint(checkpoint, misfit))
            tensors.append(entry)
    return about, tuple(tensors)


def gap_in(entry: TensorEntry) -> str:
    """Why the pieces do not cover each element of the tensor exactly once; empty if they do."""
    for piece in entry.pieces:
        if len(piece.offset) != len(entry.shape) or len(piece.shape) != len(entry.shape):
            return texts.other_dimensions(_named(piece), entry.name)
        if not all(
            min(offset, count) >= 0 and offset + count <= whole
            for offset, count, whole in zip(piece.offset, piece.shape, entry.shape, strict=True)
        ):
            return texts.outside(_named(piece), entry.name)
    if sum(math.prod(piece.shape) for piece in entry.pieces) != math.prod(entry.shape):
        return texts.not_whole(entry.name)
    for one, other in itertools.combinations(entry.pieces, 2):
        if _overlap(one, other):
            return texts.overlapping(_named(one), _named(other))
    return ""


def _named(piece: StoredSlice) -> str:
    return f"{piece.key} in {piece.file}"


def _overlap(one: StoredSlice, other: StoredSlice) -> bool:
    return all(
        max(start, other_start) < min(start + count, other_start + other_count)
        for start, count, other_start, other_count in zip(one.offset, one.shape, other.offset, other.shape, strict=True)
    )
