"""Parquet files as data: each row once, as values that collate, and files that are missing or broken are named."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from shoal.data import texts
from shoal.data.sources import FeedOptions, feed_for
from shoal.data.tables import table_files as reading
from shoal.data.tables.rows import rows_of
from shoal.data.tables.table_files import read_rows, table_files
from shoal.errors import DataError, UsageError
from support.data import as_list, epoch_of, equal_dealings

IN_MEMORY = "memory://tables"  # a file system of fsspec's own, in this process


def write(path: Path | str, columns: dict[str, Any], rows_per_group: int = 1000) -> None:
    with fsspec.open(str(path), "wb", auto_mkdir=True) as file:
        pq.write_table(pa.table(columns), file, row_group_size=rows_per_group)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table as Spark writes it: three files of numbered rows, and what belongs to no row."""
    table = tmp_path / "table"
    (table / "_temporary").mkdir(parents=True)
    for number, rows in enumerate((range(7), range(7, 9), range(9, 20))):
        write(table / f"part-{number}.snappy.parquet", {"number": list(rows), "name": [f"row {row}" for row in rows]})
    write(table / "_temporary" / "part-9.parquet", {"number": [99], "name": ["half written"]})
    (table / "_SUCCESS").touch()
    (table / ".part-0.parquet").write_bytes(b"hidden")
    (table / "part-empty.parquet").touch()
    (table / "notes.txt").write_text("a table")
    return table


def samples_of(files: Any, *, workers: int = 1, **options: Any) -> list[Any]:
    feed = feed_for(files, FeedOptions(batch_size=2, collate=as_list, **options))
    try:
        return epoch_of(feed, equal_dealings(workers, 2))
    finally:
        feed.close()


@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize("workers", [1, 3])
def test_each_row_is_a_sample(folder: Path, workers: int, loaders: int) -> None:
    expected = [{"number": number, "name": f"row {number}"} for number in range(20)]
    assert samples_of(table_files(folder), workers=workers, shuffle=False, loaders=loaders) == expected
    shuffled = samples_of(table_files(folder), workers=workers, loaders=loaders, seed=1)
    assert sorted(shuffled, key=lambda row: row["number"]) == expected


def test_one_file_and_some_columns(folder: Path) -> None:
    files = table_files(folder / "part-1.snappy.parquet", columns=["name"])
    assert samples_of(files, shuffle=False) == [{"name": "row 7"}, {"name": "row 8"}]


def test_a_single_file_is_read_where_nobody_may_look_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers 403 for a key that is not there, to those who may not list the bucket."""
    place = "memory://guarded/alone.parquet"
    write(place, {"number": [1]})
    there = MemoryFileSystem._open

    def answered(filesystem: MemoryFileSystem, path: str, *options: Any, **named: Any) -> Any:
        try:
            return there(filesystem, path, *options, **named)
        except FileNotFoundError:
            raise PermissionError("Forbidden") from None

    monkeypatch.setattr(MemoryFileSystem, "_open", answered)
    assert samples_of(table_files(place)) == [{"number": 1}]


# A column's type, values of it, and the values that samples should have.
NUMBERS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
}
TEXTS = {
    pa.string(): st.text(max_size=5),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["red", "green"]),
    pa.binary(): st.binary(max_size=5),
}


@st.composite
def columns(draw: st.DrawFn, rows: int) -> pa.Array:
    kind, values = draw(st.sampled_from([*NUMBERS.items(), *TEXTS.items()]))
    depth = draw(st.integers(0, 2)) if kind in NUMBERS else 0
    for _ in range(depth):
        size = draw(st.none() | st.integers(0, 3))  # of every list; None: each its own
        values = st.lists(values, min_size=size or 0, max_size=3 if size is None else size)
        # Arrow does not read what it writes where all lists have size 0 by their type.
        kind = pa.list_(kind, -1 if not size or draw(st.booleans()) else size)
    return pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, pa.Array]:
    rows = draw(st.integers(1, 12))
    names = draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4, unique=True))
    return {name: draw(columns(rows)) for name in names}


def plain(value: Any) -> Any:
    """A sample's value as Arrow gives it to Python, with NaN as text, since NaN is not equal to itself."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(each) for each in value]
    return "NaN" if isinstance(value, (float, np.floating)) and np.isnan(value) else value


@given(tables(), st.integers(1, 5), st.integers(1, 5))
def test_rows_come_back_as_they_were_written(table: dict[str, pa.Array], per_group: int, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "ROWS_AT_ONCE", at_once)
        write(f"{IN_MEMORY}/one.parquet", table, per_group)
        try:
            (path,) = table_files(IN_MEMORY).paths
            found = list(read_rows(str(path)))
        finally:
            fsspec.filesystem("memory").rm("/tables", recursive=True)
    expected = [{name: plain(value) for name, value in row.items()} for row in pa.table(table).to_pylist()]
    assert [{name: plain(value) for name, value in row.items()} for row in found] == expected


@given(st.sampled_from(list(NUMBERS)), st.data())
def test_lists_of_numbers_are_tensors_of_their_type(kind: Any, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(NUMBERS[kind], max_size=3), min_size=1, max_size=5))
    dtype = torch.tensor(np.zeros(1, kind.to_pandas_dtype())).dtype
    found = rows_of(pa.record_batch({"x": pa.array(rows, pa.list_(kind))}))
    assert all(row["x"].dtype is dtype and row["x"].shape == (len(row["x"]),) for row in found)
    found[0]["x"].zero_()  # changes no other row
    assert [plain(row["x"]) for row in found[1:]] == [plain(row) for row in rows[1:]]


def test_columns_collate_to_tensors_of_a_useful_type() -> None:
    shaped = pa.fixed_shape_tensor(pa.uint8(), (2, 2))
    batch = pa.record_batch(
        {
            "x": pa.array([0.5, 1.5], pa.float32()),
            "label": pa.array([3, 4], pa.int8()),
            "pixels": pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8())),
            "image": pa.ExtensionArray.from_storage(shaped, pa.array([[1, 2, 3, 4]] * 2, pa.list_(pa.uint8(), 4))),
            "name": ["a", "b"],
            "place": [{"row": 1}, {"row": 2}],
        }
    )
    collated = default_collate(rows_of(batch))
    assert collated["x"].dtype is torch.float32
    assert collated["label"].dtype is torch.int64
    assert collated["pixels"].dtype is torch.uint8 and collated["pixels"].tolist() == [[1, 2], [3, 4]]
    assert collated["image"].tolist() == [[[1, 2], [3, 4]]] * 2
    assert collated["name"] == ["a", "b"]
    assert collated["place"]["row"].tolist() == [1, 2]


def test_missing_values() -> None:
    batch = pa.record_batch({"x": [1.0, None], "n": [1, None], "l": [[1.0, None], None], "t": [None, "text"]})
    first, second = rows_of(batch)
    assert np.isnan(second["x"]) and plain(first["l"]) == [1.0, "NaN"]
    assert (first["n"], second["n"], second["l"], first["t"]) == (1, None, None, None)
    with pytest.raises(DataError, match=re.escape(texts.number_missing("n", "int64"))):
        rows_of(pa.record_batch({"n": [[1, None]]}))


def test_rows_of_all_row_groups_are_not_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one.parquet", {"number": list(range(50))}, rows_per_group=10)
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 4)
    sizes: list[int] = []

    def counted(batch: Any) -> Iterator[Any]:
        sizes.append(batch.num_rows)
        yield from rows_of(batch)

    monkeypatch.setattr(reading, "rows_of", counted)
    rows = read_rows(str(tmp_path / "one.parquet"))
    assert next(rows) == {"number": 0}
    assert sizes == [4]
    assert len(list(rows)) == 49


# What is wrong with files and URLs


def test_a_place_without_tables_is_named(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    for place in (str(tmp_path), str(tmp_path / "absent"), "memory://absent"):
        with pytest.raises(DataError, match=re.escape(texts.no_tables(place))):
            table_files(place)


def test_a_url_of_no_known_kind_is_named_without_its_password() -> None:
    with pytest.raises(DataError, match=re.escape("nosuch://host/table cannot be listed: ValueError")) as raised:
        table_files("nosuch://me:secret@host/table")
    assert "secret" not in str(raised.value)


def test_a_url_that_needs_a_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    loaded = importlib.import_module("fsspec.registry")._registry
    monkeypatch.delitem(loaded, "s3", raising=False)  # another test of this process may have used it
    with pytest.raises(UsageError, match=re.escape("shoal[s3]")):
        table_files("s3://bucket/table")


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_file_that_is_no_table_is_named(folder: Path, loaders: int) -> None:
    bad = folder / "part-5.parquet"
    bad.write_text("number,name\n1,one\n")
    with pytest.raises(DataError, match=re.escape(f"{bad} could not be read after 0 samples: ArrowInvalid")):
        samples_of(table_files(folder), shuffle=False, loaders=loaders)


def test_a_file_that_was_cut_short_is_named(folder: Path) -> None:
    cut = folder / "part-1.snappy.parquet"
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(DataError, match=re.escape(f"{cut} could not be read after 0 samples: ")):
        samples_of(table_files(folder), shuffle=False)


def test_a_column_that_a_file_lacks_is_named_with_the_file(folder: Path) -> None:
    write(folder / "part-3.parquet", {"number": [20]})
    files = table_files(folder, columns=("number", "name"))
    why = f"could not be read after 0 samples: DataError: {texts.no_column('name', ['number'])}"
    with pytest.raises(DataError, match=re.escape(f"part-3.parquet {why}")):
        samples_of(files, shuffle=False)


def test_without_pyarrow_one_line_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=re.escape(texts.NO_PYARROW)):
        table_files(folder)
