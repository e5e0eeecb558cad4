"""What `shoal.ray`, `shoal.spark` and `shoal.dask` have in common: a table that a cluster writes once, for a job.

The cluster writes its table as Parquet files at a place that all workers reach, each part where it lies: nothing of it
is collected on one machine. All that can be checked is checked before anything is written. What was not written to its
end is never trained on (`data.tables.rows_written`). Not here: how a cluster writes, which each of these modules knows
for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.data.tables.part_writing import WrittenPart, together
from shoal.errors import DataError, UsageError
from shoal.launching import texts
from shoal.launching.launch import check_launch

if TYPE_CHECKING:
    from shoal.data.tables.rows_written import RowsWritten

DATA = "data"  # the keyword under which a function gets the rows


class TableJob(NamedTuple):
    """What is launched once the rows are there."""

    function: Callable[..., object]
    arguments: Mapping[str, object] | None
    options: Mapping[str, Any]  # of `shoal.launch`


class TableWriter(NamedTuple):
    """What a cluster does with its tables."""

    check: Callable[[Any], None]  # raises `UsageError` for what is no table of the cluster's
    write: Callable[[Any, str], RowsWritten]  # has the cluster write a table to a place, and says how much it was


class NotYet:
    """Stands for the rows while they are not written."""


def options_on(engine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `shoal.launch` for a job of this engine. Raises `UsageError` if they name an engine themselves."""
    if "on" in options:
        raise UsageError(texts.on_given(engine, options["on"]))
    return {"on": engine, **options}


def with_rows(job: TableJob, table: Any, *, at: str | PathLike[str], writer: TableWriter) -> dict[str, object]:
    """The arguments of a function. With a table the rows are among them, as `shoal.Files`.

    `table`: the cluster's own, or the place of Parquet files that are there; None: there is none. The cluster's own is
    written to `at`.
    """
    given = dict(job.arguments or {})
    is_place = isinstance(table, str | PathLike)
    if at and (table is None or is_place):
        raise UsageError(texts.at_without_table(fspath(at)))
    if table is None:
        return given
    if DATA in given:
        raise UsageError(texts.data_twice(DATA))
    if not is_place and not at:
        raise UsageError(texts.NO_PLACE_FOR_TABLE)
    from shoal.data.tables.table_files import table_files  # imports torch
    from shoal.data.tables.table_place import parquet

    place = whole_place(fspath(table if is_place else at))
    if not is_place:
        writer.check(table)
        parquet()
        check_launch(job.function, arguments={**given, DATA: NotYet()}, **job.options)
        _written(table, place, writer)
    given[DATA] = table_files(place)
    return given


def _written(table: Any, place: str, writer: TableWriter) -> None:
    from shoal.data.tables.rows_written import begin, finish  # imports torch
    from shoal.data.tables.table_place import public_url
    from shoal.data.texts import table_unfinished

    begin(place)
    try:
        finish(place, writer.write(table, place))
    except BaseException as error:
        error.add_note(table_unfinished(public_url(place)))
        raise


def written_by(parts: Sequence[WrittenPart], place: str) -> RowsWritten:
    """What the processes of a cluster have written. Raises `DataError` if some of them do not see the place."""
    from shoal.data.tables.rows_written import RowsWritten  # imports torch
    from shoal.data.tables.table_place import public_url

    total = together(parts)
    if total.blind:
        raise DataError(texts.table_not_shared(total.blind, public_url(place), total.missed, total.missed + total.rows))
    return RowsWritten(is_whole=True, files=total.files, rows=total.rows, bytes=total.bytes)


def whole_place(at: str) -> str:
    """A folder with its whole path, since the processes of a cluster have other working directories; or a URL."""
    return at if "://" in at else str(Path(at).absolute())
