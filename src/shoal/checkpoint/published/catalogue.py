"""What is in a store: published checkpoints, their manifests and marks, and what may be removed. No torch.

A checkpoint is published when its manifest is there. The newer of two checkpoints is the one of the later generation,
then of the later step: a job that had to go back to an older checkpoint goes on from there in a later generation. Marks
are small files that hold a checkpoint's name; marked checkpoints are kept. Not here: reading tensors (`reader`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import xxhash

from shoal.checkpoint import texts
from shoal.checkpoint.parts.part_file import Header, read_header
from shoal.checkpoint.published.joining import gap_in, misfit_in
from shoal.checkpoint.published.manifest import (
    MANIFEST,
    Manifest,
    StoredSlice,
    TensorEntry,
    decode_manifest,
    parse_name,
)
from shoal.checkpoint.stores.names import is_plain
from shoal.checkpoint.stores.store import Store
from shoal.errors import CheckpointUnusable, UsageError, WireError

MARKS = "marks"
MAX_MANIFEST_BYTES = 2**30
CHUNK = 32 * 2**20  # bytes read at once for a checksum
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, order=True)
class CheckpointEntry:
    """A checkpoint by its name; later ones are greater."""

    generation: int
    step: int
    name: str


@dataclass(frozen=True)
class Damage:
    """Something in a published checkpoint that differs from its manifest."""

    file: str  # with the checkpoint's name before it
    tensor: str  # name of the damaged tensor; empty if the file as a whole is damaged
    text: str


def published(store: Store) -> list[CheckpointEntry]:
    """Published checkpoints, newest first. Costs one request for each; no manifest is read."""
    return [listed for listed in _all(store) if is_published(store, listed.name)]


def is_published(store: Store, name: str) -> bool:
    try:
        return store.size(f"{name}/{MANIFEST}") >= 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def unpublished(store: Store) -> list[str]:
    """Names of checkpoints without a manifest: being written, or left behind."""
    return [listed.name for listed in _all(store) if not is_published(store, listed.name)]


def last_generation(store: Store) -> int:
    """The highest generation in any checkpoint's name, published or not; 0 if there is no checkpoint."""
    return max((listed.generation for listed in _all(store)), default=0)


def _all(store: Store) -> list[CheckpointEntry]:
    named = ((parse_name(name), name) for name in store.names())
    return sorted(
        (CheckpointEntry(place[1], place[0], name) for place, name in named if place is not None), reverse=True
    )


def load_manifest(store: Store, name: str) -> Manifest:
    """Read and check a manifest. CheckpointUnusable: its text begins with the file; OSError: the store fails."""
    file = f"{name}/{MANIFEST}"
    try:
        if (size := store.size(file)) > MAX_MANIFEST_BYTES:
            raise CheckpointUnusable(texts.manifest_too_large(file, size, MAX_MANIFEST_BYTES))
        text = str(store.read(file), "utf-8")
        manifest = decode_manifest(text.encode(), checkpoint=name)
    except FileNotFoundError:
        raise CheckpointUnusable(texts.not_published(file, store.place, name)) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise CheckpointUnusable(texts.damaged(file, error)) from None
    for entry in manifest.files:
        if not is_plain(entry.name) or entry.size < 0:
            raise CheckpointUnusable(texts.damaged(file, texts.no_such_part(entry.name, entry.size)))
    for tensor in manifest.tensors:
        if gap := gap_in(tensor):
            raise CheckpointUnusable(texts.damaged(file, gap))
    return manifest


def verify(store: Store, manifest: Manifest) -> list[Damage]:
    """Read every byte and list all damage; an empty list means that all bytes are as they were written."""
    problems: list[Damage] = []
    pieces: dict[str, list[tuple[TensorEntry, StoredSlice]]] = {}
    for tensor in manifest.tensors:
        for piece in tensor.pieces:
            pieces.setdefault(piece.file, []).append((tensor, piece))
    for entry in manifest.files:
        file = f"{manifest.checkpoint}/{entry.name}"
        try:
            header = _header_of(store, file, entry.size)
        except (OSError, WireError) as error:
            problems.append(Damage(file, "", _text_of(error)))
            continue
        for tensor, piece in pieces.get(entry.name, ()):
            if text := misfit_in(header, tensor, piece) or _damage(store, file, header, piece):
                problems.append(Damage(file, tensor.name, text))
    return problems


def _header_of(store: Store, file: str, size: int) -> Header:
    found = store.size(file)
    if found != size:
        raise WireError(texts.wrong_size(found, size))
    header = read_header(store, file)
    if header.file_size != size:
        raise WireError(texts.header_of_another_size(header.file_size, size))
    return header


def _damage(store: Store, file: str, header: Header, piece: StoredSlice) -> str:
    """What is wrong with a piece's bytes; empty if nothing is."""
    entry = header.entries[piece.key]
    digest = xxhash.xxh3_64()
    try:
        for start in range(header.data_start + entry.begin, end := header.data_start + entry.end, CHUNK):
            digest.update(store.read(file, start, min(end, start + CHUNK)))
    except OSError as error:
        return _text_of(error)
    return "" if digest.hexdigest() == piece.checksum else texts.BAD_CHECKSUM


def _text_of(error: OSError | WireError) -> str:
    if isinstance(error, FileNotFoundError):
        return texts.MISSING
    return f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def marks(store: Store) -> dict[str, str]:
    """The marks: by label, the checkpoint that carries it."""
    found = {}
    for label in store.names(MARKS):
        if _LABEL.fullmatch(label):
            try:
                text = bytes(store.read(f"{MARKS}/{label}", 0, 64))
            except FileNotFoundError:  # just removed
                continue
            name = text.decode("ascii", "replace").strip()
            if parse_name(name) is not None:
                found[label] = name
    return found


def set_mark(store: Store, label: str, name: str) -> None:
    """Mark a checkpoint with a label. If another checkpoint has the label, it moves."""
    check_label(label)
    store.write(f"{MARKS}/{label}", [f"{name}\n".encode()])


def remove_mark(store: Store, label: str) -> None:
    check_label(label)
    store.remove(f"{MARKS}/{label}")


def check_label(label: str) -> None:
    if not _LABEL.fullmatch(label) or parse_name(label) is not None:
        raise UsageError(texts.bad_label(label))


def to_remove(names: Iterable[str], marked: Collection[str], keep: int) -> list[str]:
    """All but the newest `keep` and the marked ones, oldest first. Names that are no checkpoint's are left out."""
    places = ((parse_name(name), name) for name in names)
    known = sorted((place[1], place[0], name) for place, name in places if place is not None)
    return [name for _, _, name in known[: max(0, len(known) - keep)] if name not in marked]


def age_of(name: str) -> tuple[int, int]:
    """A key that sorts names of checkpoints by age: later ones are greater."""
    step, generation = parse_name(name) or (-1, -1)
    return generation, step


def remove(store: Store, name: str) -> None:
    """Remove the manifest first, so that a checkpoint that is half removed is not published any more."""
    store.remove(f"{name}/{MANIFEST}")
    store.remove(name)
