"""A fingerprint of the data that a worker was given: the length and hashes of a few samples, which workers compare.

Data that every worker was meant to have whole, but that were split by rank before, show here: their samples differ. A
sample that differs when one worker reads it twice, that cannot be hashed, or that raises has no hash: nobody compares
it. Not here: when workers compare, and what they say (`training.mistakes.compared_data`).
"""

from __future__ import annotations

import dataclasses
import struct
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np
import torch
import xxhash

from shoal.data.loading import Assembler
from shoal.data.order import sample_seeds
from shoal.data.seeding import generators_kept, may_be_random, seed_generators

SAMPLES = 4  # of a data set that are hashed
SECONDS = 2.0  # for reading them; samples that were not read by then have no hash
DEEPEST = 16  # levels of lists and mappings in a sample
UNKNOWN = -1  # in place of a length


Hashes = tuple[tuple[int, int], ...]  # index and signed 64-bit hash of samples that have one


class Fingerprint(msgspec.Struct, frozen=True):
    length: int  # samples per epoch; UNKNOWN: of a stream
    hashes: Hashes = ()  # SAMPLES at most

    def steady(self, later: Fingerprint) -> Self:
        """Without the hashes that a later reading does not confirm."""
        confirmed = set(later.hashes)
        return msgspec.structs.replace(self, hashes=tuple(pair for pair in self.hashes if pair in confirmed))

    def as_numbers(self) -> list[int]:
        """As many signed 64-bit numbers for every fingerprint."""
        missing = SAMPLES - len(self.hashes)
        return [self.length, *(number for pair in self.hashes for number in pair), *([UNKNOWN, 0] * missing)]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Self:
        pairs = zip(numbers[1::2], numbers[2::2], strict=True)
        return cls(numbers[0], tuple((index, number) for index, number in pairs if index != UNKNOWN))


class DataDifference(msgspec.Struct, frozen=True):
    """Two ranks that were given different data."""

    ranks: tuple[int, int]
    index: int | None  # of a sample that differs; None: their lengths differ
    lengths: tuple[int, int]


def first_difference(fingerprints: Sequence[Fingerprint]) -> DataDifference | None:
    """The first difference from rank 0's. Samples that have no hash on some rank are left out."""
    first = fingerprints[0]
    for rank, other in enumerate(fingerprints):
        if other.length != first.length:
            return DataDifference((0, rank), None, (first.length, other.length))
    hashes = [dict(each.hashes) for each in fingerprints]
    for index, expected in first.hashes:
        if not all(index in known for known in hashes):
            continue
        for rank, known in enumerate(hashes):
            if known[index] != expected:
                return DataDifference((0, rank), index, (first.length, first.length))
    return None


def spread(length: int) -> list[int]:
    """Indices of the samples to compare, chosen from the length alone: the first, the last and some in between."""
    return sorted({place * (length - 1) // (SAMPLES - 1) for place in range(SAMPLES)}) if length > 0 else []


# Reading


def read_hashes(source: Any, *, seed: int) -> Hashes:
    """Index and hash of the samples to compare, each read twice with generators seeded as in epoch 0."""
    indices = spread(len(source))
    if not may_be_random(source):  # the generators are none of its business
        return _steady(source, [(index, None) for index in indices])
    seeds = sample_seeds(seed=seed, epoch=0, indices=np.array(indices, dtype=np.int64))
    with generators_kept():
        return _steady(source, list(zip(indices, seeds, strict=True)))


def _steady(source: Any, seeded: Sequence[tuple[int, int | None]]) -> Hashes:
    """`seeded`: indices, each with its seed, or with None where no random number is drawn."""
    found = []
    until = time.monotonic() + SECONDS
    for index, seed in seeded:
        if time.monotonic() >= until:
            break
        first = _read(source, index, seed)
        if first is not None and first == _read(source, index, seed):
            found.append((index, first))
    return tuple(found)


def _read(source: Any, index: int, seed: int | None) -> int | None:
    if seed is not None:
        seed_generators(seed)
    try:
        return hash_of(source[index])
    except Exception:  # the loop reads this sample too, and says what is wrong with it
        return None


class HashAssembler(Assembler):
    """Reads hashes in a loader process. A data set that opens its files when a sample is first read must not open
    them in the worker: forked loader processes would share what it opened.
    """

    reads_in_sequence = False

    def __init__(self, source: Any, *, seed: int) -> None:
        self.source = source
        self._seed = seed

    def load(self, work: None) -> Hashes:  # noqa: ARG002  there is only one thing to do
        return read_hashes(self.source, seed=self._seed)


class KnownHashes:
    """Hashes by data set, for as long as it lives and is read in the same way."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], tuple[int, ...], Hashes]] = {}  # by the data set's id

    def get(self, source: Any, way: tuple[int, ...]) -> Hashes | None:
        """`way`: all that the hashes depend on besides the data set, such as its length."""
        reference, known_way, hashes = self._found.get(id(source), (None, (), ()))
        return hashes if reference is not None and reference() is source and known_way == way else None

    def put(self, source: Any, way: tuple[int, ...], hashes: Hashes) -> None:
        key = id(source)
        try:
            reference = weakref.ref(source, lambda _: self._found.pop(key, None))
        except TypeError:  # lists and tuples: reading some of their samples again costs next to nothing
            return
        self._found[key] = (reference, way, hashes)


known_hashes = KnownHashes()

# Hashing


class Unhashable(Exception):
    """A sample that holds something else than numbers, text, bytes, tensors and arrays."""


def hash_of(sample: Any) -> int | None:
    """A signed 64-bit hash of what a sample holds; None where it holds something that cannot be hashed."""
    digest = xxhash.xxh3_64()
    try:
        _add(digest, sample, 0)
    except Exception:  # objects of the user's own may raise anything when they are looked at
        return None
    return int.from_bytes(digest.digest(), "big", signed=True)


def _add(digest: xxhash.xxh3_64, value: Any, depth: int) -> None:
    """Every part starts with its kind and its size, so that different samples never give the same bytes."""
    if depth > DEEPEST:
        raise Unhashable
    if isinstance(value, torch.Tensor):
        _add_tensor(digest, value)
    elif isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array_interface__"):  # the latter: PIL images
        _add_array(digest, np.asarray(value))
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)};".encode())
        for key in sorted(value, key=repr):  # the order of keys means nothing in a sample
            _add(digest, key, depth + 1)
            _add(digest, value[key], depth + 1)
    elif isinstance(value, tuple | list):
        digest.update(f"sequence {len(value)};".encode())
        for part in value:
            _add(digest, part, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _add(digest, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, depth + 1)
    else:
        digest.update(_single(value))


def _single(value: Any) -> bytes:
    """The bytes of a value without parts."""
    match value:
        case None | bool():
            return f"constant {value};".encode()
        case int():
            return f"int {int(value)};".encode()
        case float():
            return b"float " + struct.pack("<d", value)
        case complex():
            return b"complex " + struct.pack("<dd", value.real, value.imag)
        case str():
            data = value.encode("utf-8", "surrogatepass")
            return f"str {len(data)};".encode() + data
        case bytes() | bytearray():
            return f"bytes {len(value)};".encode() + value
    raise Unhashable


def _add_tensor(digest: xxhash.xxh3_64, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise Unhashable
    digest.update(f"tensor {tensor.dtype} {tuple(tensor.shape)};".encode())
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if flat.numel():
        digest.update(flat.view(torch.uint8).numpy().data)


def _add_array(digest: xxhash.xxh3_64, array: np.ndarray[Any, Any]) -> None:
    if array.dtype.hasobject:
        raise Unhashable
    digest.update(f"array {array.dtype.str} {array.shape};".encode())
    digest.update(array.tobytes())
