"""`table_files`: the Parquet files below a URL as data, a sample per row. For tables that Spark, Dask and others write.

A file is read a row group at a time: in memory are its columns of one row group, as they lie in the file, and
`ROWS_AT_ONCE` decoded rows. Needs the extra `tables`. Not here: what a row looks like (`rows`), which files there are
(`table_place`), and whether they are all there (`rows_written`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any

import fsspec.core  # type: ignore[import-untyped]  # fsspec has no types

from shoal.data import texts
from shoal.data.streams import Files
from shoal.data.tables.rows import rows_of
from shoal.data.tables.rows_written import RowsWritten, compared, marker_at
from shoal.data.tables.table_place import parquet, public_url, seen_tables
from shoal.errors import DataError

ROWS_AT_ONCE = 1024  # decoded


@dataclass(frozen=True)
class TableFiles(Files):
    """`Files` that know what they should be: whoever gets them, on whatever machine, looks whether it sees the same."""

    place: str = ""
    written: RowsWritten | None = None  # None: nobody has said

    def __reduce__(self) -> tuple[Callable[..., TableFiles], tuple[object, ...]]:
        return arrived, (self.paths, self.read, self.place, self.written)


def table_files(url: str | PathLike[str], *, columns: Sequence[str] | None = None) -> Files:
    """The Parquet files below a folder or URL as data: each row is a sample, a dict from column name to value.

    Integers and booleans come as Python's, floats as numpy scalars of their precision, text as `str`, lists of numbers
    as tensors: `run.batches` makes a tensor of each column, and a list of a column of text. `columns`: read only
    these. Files are found when this is called, sorted by name; hidden and empty ones are left out. A URL is any that
    fsspec knows, such as `s3://bucket/table`, and may name a single file. Needs `pip install "shoal[tables]"`.
    """
    parquet()
    place = fspath(url)
    written = marker_at(place)
    seen = seen_tables(place) if written is None else compared(place, written)
    if not seen.paths:
        raise DataError(texts.no_tables(public_url(place)))
    read = partial(read_rows, columns=None if columns is None else tuple(columns))
    return TableFiles(seen.paths, read, place, written)


def arrived(
    paths: Sequence[str], read: Callable[[Any], Iterable[Any]], place: str, written: RowsWritten | None
) -> TableFiles:
    """The same files in another process. Raises `DataError` if they are not the same there."""
    if written is not None:
        compared(place, written)
    return TableFiles(paths, read, place, written)


def read_rows(path: str, *, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of one Parquet file, as samples."""
    with fsspec.open(path, "rb") as opened, parquet().ParquetFile(opened) as table:
        there = table.schema_arrow.names
        absent = [name for name in columns or () if name not in there]
        if absent:
            raise DataError(texts.no_column(absent[0], there))
        # Threads of Arrow's would take cores that other workers of this machine use.
        for batch in table.iter_batches(ROWS_AT_ONCE, columns=columns, use_threads=False):
            yield from rows_of(batch)
