"""Part files are safetensors files: what is written here the library reads, and the other way round."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as some

from shoal.checkpoint.parts.part_file import Header, StoredTensor, decode_header, encode_header, read_header, stored_as
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.checkpoint.stores.store import Buffer
from shoal.errors import UsageError, WireError

DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "uint16": torch.uint16,
    "int32": torch.int32,
    "uint32": torch.uint32,
    "int64": torch.int64,
    "uint64": torch.uint64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
# Those are stored as views of other dtypes.
VIEWED = {
    "complex32": torch.float16,
    "complex64": torch.float32,
    "complex128": torch.float64,
    "float8_e4m3fnuz": torch.uint8,
    "float8_e5m2fnuz": torch.uint8,
    "float8_e8m0fnu": torch.uint8,
    "float4_e2m1fn_x2": torch.uint8,
}
SHAPES = some.lists(some.integers(0, 4), max_size=4).map(tuple)
TEXTS = some.text(some.characters(exclude_categories=["Cs"]), max_size=12)
KEYS = TEXTS.filter(lambda key: key != "__metadata__")


def contents(kinds: list[tuple[str, str, tuple[int, ...]]]) -> list[tuple[StoredTensor, bytes]]:
    found = []
    for number, (key, dtype, shape) in enumerate(kinds):
        size = math.prod(shape) * getattr(torch, dtype).itemsize
        data = bytes((number + position) % 2 for position in range(size))  # 0 and 1 are values of every dtype
        found.append((StoredTensor(key=key, dtype=dtype, shape=shape, size=size), data))
    return found


KINDS = some.lists(
    some.tuples(KEYS, some.sampled_from([*DTYPES, *VIEWED]), SHAPES),
    max_size=6,
    unique_by=lambda kind: kind[0],
)


@given(KINDS, some.dictionaries(TEXTS, TEXTS, max_size=3))
def test_the_library_reads_what_is_written(
    kinds: list[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]
) -> None:
    made = contents(kinds)
    header = encode_header([stored for stored, _ in made], metadata)
    file = header + b"".join(data for _, data in made)
    assert len(header) % 8 == 0
    read = safetensors.torch.load(file)
    assert set(read) == {stored.key for stored, _ in made}
    for stored, data in made:
        tensor = read[stored.key]
        assert tensor.dtype == (DTYPES | VIEWED)[stored.dtype]
        assert tuple(tensor.shape) == stored_as(stored.dtype, stored.shape)[1]
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == data
    check(decode_header(file), made, metadata, len(file))


def check(header: Header, made: list[tuple[StoredTensor, bytes]], metadata: dict[str, str], size: int) -> None:
    assert header.metadata == metadata
    assert header.file_size == size
    assert set(header.entries) == {stored.key for stored, _ in made}
    position = 0
    for stored, _ in made:
        entry = header.entries[stored.key]
        assert (entry.dtype, entry.shape) == stored_as(stored.dtype, stored.shape)
        assert (entry.begin, entry.end) == (position, position + stored.size)
        position = entry.end


@given(
    some.lists(some.tuples(KEYS, some.sampled_from(list(DTYPES)), SHAPES), max_size=6, unique_by=lambda kind: kind[0])
)
def test_what_the_library_writes_is_read(kinds: list[tuple[str, str, tuple[int, ...]]]) -> None:
    tensors = {key: torch.ones(shape).to(DTYPES[dtype]) for key, dtype, shape in kinds}
    file = safetensors.torch.save(tensors, metadata={"a": "b"})
    header = decode_header(file)
    assert header.metadata == {"a": "b"}
    assert header.file_size == len(file)
    for key, tensor in tensors.items():
        entry = header.entries[key]
        data = file[header.data_start + entry.begin : header.data_start + entry.end]
        assert data == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@given(some.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_header(data)


@given(some.data())
def test_a_damaged_header_is_refused_or_still_one(data: some.DataObject) -> None:
    """Whatever one byte of it becomes, nothing else than a WireError comes out."""
    header = bytearray(
        encode_header([StoredTensor("a", "float32", (2, 3), 24), StoredTensor("b", "int64", (), 8)], {"k": "v"})
    )
    place = data.draw(some.integers(0, len(header) - 1))
    header[place] = data.draw(some.integers(0, 255))
    try:
        found = decode_header(header)
    except WireError:
        return
    assert found.file_size - found.data_start == 32


def framed(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "4 bytes"),
        ({"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}, "not one of safetensors"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, "not one of safetensors"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}, "begins at byte 8"),
        ({"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}, "'X9'"),
        ({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}, "not one of safetensors"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1}}, "not one of safetensors"),
        ({"__metadata__": {"a": 1}}, "not one of safetensors"),
        ([], "not one of safetensors"),
        (
            {
                "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
            },
            "ends at 8",
        ),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(header: object, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode_header(framed(header))


def test_a_length_that_is_none_is_refused_before_anything_is_read() -> None:
    with pytest.raises(WireError, match="would have 9223372036854775807 bytes"):
        decode_header((2**63 - 1).to_bytes(8, "little") + b"{}")
    with pytest.raises(WireError, match="ends after 10 bytes"):
        decode_header((100).to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize("dtype", ["qint8", "nonsense"])
def test_a_dtype_that_cannot_be_stored_is_named(dtype: str) -> None:
    with pytest.raises(UsageError, match=dtype):
        encode_header([StoredTensor("a", dtype, (1,), 1)], {})


@pytest.mark.parametrize("entries", [[StoredTensor("a", "float32", (2,), 4)], [StoredTensor("a", "int8", (), 1)] * 2])
def test_entries_that_contradict_themselves_are_refused(entries: list[StoredTensor]) -> None:
    with pytest.raises(ValueError, match="a: "):
        encode_header(entries, {})


class Counted(LocalStore):
    reads = 0

    def read(self, name: str, start: int = 0, end: int | None = None) -> Buffer:
        self.reads += 1
        return super().read(name, start, end)


@pytest.mark.parametrize(("length", "reads"), [(10, 1), (300_000, 2)])
def test_a_header_is_read_without_the_tensors(tmp_path: Path, length: int, reads: int) -> None:
    store = Counted(tmp_path)
    header = encode_header([StoredTensor("a", "uint8", (10**6,), 10**6)], {"long": "x" * length})
    store.write("file", [header, bytes(10**6)])
    assert read_header(store, "file") == decode_header(header)
    assert store.reads == reads
