"""The manifest of a checkpoint: what makes a folder of part files one whole state. No torch: the coordinator writes it.

A checkpoint names tensors and slices globally, not by rank, so that any number of workers can read it. Tensors of a
single worker, such as a codec's residual, lie beside the state under the worker's rank. Each worker writes one part, a
safetensors file whose header carries a `PartIndex`; the coordinator joins the indexes into the manifest, and writing
the manifest last publishes the checkpoint.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import xxhash

from shoal.bounds import Count, Items, Members, Name, Ordinal, Shape, Size, Text
from shoal.checkpoint import texts
from shoal.errors import CheckpointUnusable
from shoal.values import Cursor, Generation

FORMAT = 1
MANIFEST = "manifest.json"
OWN = "ranks/"  # see `own_prefix`
INDEX_KEY = "shoal"  # of the index in a part's safetensors metadata
_NAME = re.compile(r"step-([0-9]{8,15})-g([0-9]{1,9})")


class StoredSlice(msgspec.Struct, frozen=True):
    """A slice of a tensor in one file."""

    file: Name
    key: Name  # name in the file
    offset: Shape  # first index in each dimension of the whole tensor
    shape: Shape
    size: Size  # bytes
    checksum: Name  # XXH3, 64 bits, of the bytes; 16 hexadecimal digits


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor of the state. A `PartIndex` lists the pieces in its part only, a `Manifest` those of all parts."""

    name: Name  # its path in the state: models/model 1/fc.weight
    dtype: Name  # torch's name: float32
    shape: Shape
    pieces: Members[StoredSlice]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to a state besides its tensors; the same for all parts."""

    kind: Literal["full", "weights"]  # weights: a model alone, from `shoal import`
    step: Count
    generation: Generation
    cursor: Cursor
    loop: Ordinal  # number of the loop that was going on
    first_step: Count  # applied steps when that loop began
    config: Text  # TOML
    tree: msgspec.Raw  # JSON skeleton of the state; a tensor's number is its place in the list of tensors
    reason: Text  # why the checkpoint was made
    mark: Name = ""


class PartIndex(msgspec.Struct, frozen=True, kw_only=True):
    tensors: Items[TensorEntry]  # every tensor of the state, in order, also those without a piece in this part
    own: Items[TensorEntry] = ()  # tensors of this worker alone; the part has all of each
    about: About | None = None  # in the first part only


class FileEntry(msgspec.Struct, frozen=True):
    name: Name
    size: Size  # bytes


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: Ordinal
    checkpoint: Name  # its own name
    written: float  # seconds since 1970
    about: About
    files: Members[FileEntry]
    tensors: Items[TensorEntry]  # of the state, then of single workers, by rank
    checksum: Name = ""  # of everything else in the manifest; filled in when it is encoded

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def own_prefix(rank: int) -> str:
    """The beginning of the names of tensors that belong to one worker, not to the state."""
    return f"{OWN}{rank}/"


def checkpoint_name(step: int, generation: int) -> str:
    """Names sort by step. A step that is reached again, in a later generation, gets another name."""
    return f"step-{step:08}-g{generation}"


def parse_name(name: str) -> tuple[int, int] | None:
    """Step and generation in a checkpoint's name; None if it is no checkpoint's name."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def part_name(rank: int, world_size: int) -> str:
    return f"part-{rank}-of-{world_size}.safetensors"


def encode_manifest(manifest: Manifest) -> bytes:
    whole = msgspec.structs.replace(manifest, checksum=_checksum(manifest))
    return msgspec.json.format(msgspec.json.encode(whole), indent=1)


def _checksum(manifest: Manifest) -> str:
    """XXH3 of the manifest without white space and without its checksum."""
    plain = msgspec.json.encode(msgspec.structs.replace(manifest, checksum=""))
    return xxhash.xxh3_64(msgspec.json.format(plain, indent=-1)).hexdigest()


def decode_manifest(data: bytes, *, checkpoint: str) -> Manifest:
    """Decode a manifest; check its types, its checksum and that its pieces fit. `checkpoint`: the expected name."""
    file = f"{checkpoint}/{MANIFEST}"
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointUnusable(texts.damaged(file, error)) from None
    if manifest.format != FORMAT:
        raise CheckpointUnusable(texts.other_format(file, manifest.format, FORMAT))
    if manifest.checksum != _checksum(manifest):
        raise CheckpointUnusable(texts.damaged(file, texts.BAD_MANIFEST_CHECKSUM))
    if manifest.checkpoint != checkpoint:
        raise CheckpointUnusable(texts.of_another_checkpoint(file, manifest.checkpoint))
    known = {file.name for file in manifest.files}
    for tensor in manifest.tensors:
        for piece in tensor.pieces:
            if piece.file not in known or not len(piece.offset) == len(piece.shape) == len(tensor.shape):
                raise CheckpointUnusable(texts.damaged(file, texts.pieces_do_not_fit(tensor.name)))
    return manifest
