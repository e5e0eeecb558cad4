"""Joins the indexes of a checkpoint's parts into one description of the whole. Pure.

Each worker has planned its own part. Here it shows whether the plans fit: the same tensors in every part, pieces that
cover each of them exactly once, one description of the state. Not here: reading the parts (`store_publisher`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from shoal.checkpoint.parts.part_file import Header, stored_as
from shoal.checkpoint.published.manifest import INDEX_KEY, About, PartIndex, StoredSlice, TensorEntry, checkpoint_name
from shoal.errors import CheckpointUnusable, UsageError

_decoder: msgspec.json.Decoder[PartIndex] = msgspec.json.Decoder(PartIndex)


def index_in(header: Header, *, file: str) -> PartIndex:
    """The index of a part, checked against the part's own header. `file` is its name in the checkpoint."""
    try:
        index = _decoder.decode(header.metadata.get(INDEX_KEY, ""))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointUnusable(f"{file} has no index of its tensors: {error}") from None
    for entry in index.tensors:
        for piece in entry.pieces:
            if piece.file != file or (misfit := misfit_in(header, entry, piece)):
                what = f"says it is in {piece.file}" if piece.file != file else misfit
                raise CheckpointUnusable(f"{file} does not fit its own index: {piece.key} {what}")
    return index


def misfit_in(header: Header, entry: TensorEntry, piece: StoredSlice) -> str:
    """How a piece differs from its file's header; empty if it does not."""
    found = header.entries.get(piece.key)
    if found is None:
        return "is not in the file's header"
    try:
        wanted = stored_as(entry.dtype, piece.shape)
    except UsageError:
        return f"has the unknown dtype {entry.dtype}"
    if (found.dtype, found.shape) != wanted or found.end - found.begin != piece.size:
        return f"is {found.dtype} {list(found.shape)} in the file's header, not {wanted[0]} {list(wanted[1])}"
    return ""


def join(indexes: Sequence[PartIndex], *, checkpoint: str) -> tuple[About, tuple[TensorEntry, ...]]:
    """Join the indexes of all parts, by rank. Raises CheckpointUnusable if they are not one whole state."""
    abouts = [index.about for index in indexes if index.about is not None]
    if len(abouts) != 1:
        raise CheckpointUnusable(f"{checkpoint}: {len(abouts)} of the parts describe the state; exactly one should")
    about = abouts[0]
    if checkpoint_name(about.step, about.generation.number) != checkpoint:
        raise CheckpointUnusable(
            f"{checkpoint}: its parts are of step {about.step}, generation {about.generation.number}"
        )
    if len({len(index.tensors) for index in indexes}) != 1:
        raise CheckpointUnusable(f"{checkpoint}: its parts know different numbers of tensors")
    tensors = []
    for entries in zip(*(index.tensors for index in indexes), strict=True):
        first = entries[0]
        if len({(entry.name, entry.dtype, entry.shape) for entry in entries}) != 1:
            raise CheckpointUnusable(f"{checkpoint}: its parts disagree about {first.name}")
        joined = msgspec.structs.replace(first, pieces=tuple(piece for entry in entries for piece in entry.pieces))
        if misfit := gap_in(joined):
            raise CheckpointUnusable(f"{checkpoint}: {misfit}")
        tensors.append(joined)
    return about, tuple(tensors)


def gap_in(entry: TensorEntry) -> str:
    """Why the pieces do not cover each element of the tensor exactly once; empty if they do."""
    for piece in entry.pieces:
        if len(piece.offset) != len(entry.shape) or len(piece.shape) != len(entry.shape):
            return f"{piece.key} in {piece.file} has another number of dimensions than {entry.name}"
        if not all(
            min(offset, count) >= 0 and offset + count <= whole
            for offset, count, whole in zip(piece.offset, piece.shape, entry.shape, strict=True)
        ):
            return f"{piece.key} in {piece.file} lies outside of {entry.name}"
    if sum(math.prod(piece.shape) for piece in entry.pieces) != math.prod(entry.shape):
        return f"the pieces of {entry.name} are not the whole tensor"
    for one, other in itertools.combinations(entry.pieces, 2):
        if _overlap(one, other):
            return f"{one.key} in {one.file} and {other.key} in {other.file} overlap"
    return ""


def _overlap(one: StoredSlice, other: StoredSlice) -> bool:
    return all(
        max(start, other_start) < min(start + count, other_start + other_count)
        for start, count, other_start, other_count in zip(one.offset, one.shape, other.offset, other.shape, strict=True)
    )
