"""`table_files`: the Parquet files below a URL as data, a sample per row. For tables that Spark, Dask and others write.

A file is read a row group at a time: in memory are its columns of one row group, as they lie in the file, and
`ROWS_AT_ONCE` decoded rows. Needs the extra `tables`. Not here: what a row looks like (`rows`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from os import PathLike, fspath
from types import ModuleType
from typing import Any

import fsspec.core  # type: ignore[import-untyped]  # fsspec has no types

from shoal.data import texts
from shoal.data.loading import described
from shoal.data.streams import Files
from shoal.data.tables.rows import rows_of
from shoal.errors import DataError, UsageError

ENDING = ".parquet"
HIDDEN = ("_", ".")  # beginnings of names of files and folders that hold no rows: _SUCCESS, _temporary, .crc
ROWS_AT_ONCE = 1024  # decoded


def table_files(url: str | PathLike[str], *, columns: Sequence[str] | None = None) -> Files:
    """The Parquet files below a folder or URL as data: each row is a sample, a dict from column name to value.

    Integers and booleans come as Python's, floats as numpy scalars of their precision, text as `str`, lists of numbers
    as tensors: `run.batches` makes a tensor of each column, and a list of a column of text. `columns`: read only
    these. Files are found when this is called, sorted by name; hidden and empty ones are left out. A URL is any that
    fsspec knows, such as `s3://bucket/table`, and may name a single file. Needs `pip install "shoal[tables]"`.
    """
    _parquet()
    paths = found_tables(fspath(url))
    if not paths:
        raise DataError(texts.no_tables(_public(fspath(url))))
    return Files(paths, partial(read_rows, columns=None if columns is None else tuple(columns)))


def found_tables(place: str) -> list[str]:
    """Paths or URLs of the Parquet files below a folder or URL."""
    try:
        return _found(place)
    except ImportError as error:
        raise UsageError(texts.no_way_to_tables(_public(place), str(error))) from None
    except Exception as error:
        why = described(error).replace(place, _public(place))
        raise DataError(texts.tables_unreachable(_public(place), why)) from error


def _found(place: str) -> list[str]:
    filesystem, root = fsspec.core.url_to_fs(place)
    filesystem.invalidate_cache()  # the files may have been written since this process last looked
    if filesystem.isfile(root):
        return [place]
    found = filesystem.find(root, detail=True)
    names = sorted(name for name, info in found.items() if info.get("size") != 0 and _is_table(name, root))
    return names if "://" not in place else [filesystem.unstrip_protocol(name) for name in names]


def _is_table(name: str, root: str) -> bool:
    below = name.removeprefix(root).split("/")
    return name.endswith(ENDING) and not any(part.startswith(HIDDEN) for part in below)


def read_rows(path: str, *, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of one Parquet file, as samples."""
    parquet = _parquet()
    with fsspec.open(path, "rb") as opened, parquet.ParquetFile(opened) as table:
        there = table.schema_arrow.names
        absent = [name for name in columns or () if name not in there]
        if absent:
            raise DataError(texts.no_column(absent[0], there))
        # Threads of Arrow's would take cores that other workers of this machine use.
        for batch in table.iter_batches(ROWS_AT_ONCE, columns=columns, use_threads=False):
            yield from rows_of(batch)


def _parquet() -> ModuleType:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: PLC0415  an extra; has no types
    except ImportError:
        raise UsageError(texts.NO_PYARROW) from None
    module: ModuleType = pyarrow.parquet
    return module


def _public(url: str) -> str:
    """The URL without a user name and password."""
    return re.sub(r"//[^/@]*@", "//", url)
