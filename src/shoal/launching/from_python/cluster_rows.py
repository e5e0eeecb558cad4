"""What `shoal.ray`, `shoal.spark` and `shoal.dask` have in common: a table that a cluster writes once, for a job.

The cluster writes its table as Parquet files at a place that all workers reach, each part where it lies: nothing of it
is collected on one machine. Not here: how a cluster writes, which each of these modules knows for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.launching import texts

DATA = "data"  # the keyword under which a function gets the rows


def with_rows(
    arguments: Mapping[str, object] | None, table: Any, *, at: str | PathLike[str], write: Callable[[Any, str], str]
) -> dict[str, object]:
    """The arguments of a function. With a table the rows are among them, as `shoal.Files`.

    `table`: the cluster's own, or the place of Parquet files that are there; None: there is none. `write` has the
    cluster write its table to `at`, and returns that place as fsspec calls it.
    """
    given = dict(arguments or {})
    if table is None:
        if at:
            raise UsageError(texts.at_without_table(fspath(at)))
        return given
    if DATA in given:
        raise UsageError(texts.data_twice(DATA))
    is_place = isinstance(table, str | PathLike)
    if not is_place and not at:
        raise UsageError(texts.NO_PLACE_FOR_TABLE)
    from shoal.data.tables.table_files import table_files  # imports torch

    given[DATA] = table_files(table if is_place else write(table, fspath(at)))
    return given


def whole_place(at: str) -> str:
    """A folder with its whole path, since the processes of a cluster have other working directories; or a URL."""
    return at if "://" in at else str(Path(at).absolute())
