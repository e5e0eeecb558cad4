"""What Shoal leaves beside a table that a cluster writes for it: whether the table is whole, and how much it is.

The file `_shoal_rows.json` is written before the first row, and again when all rows are there and were counted. A table
that was begun and not finished is never read, and a whole one only where as much is seen as was written: not where a
folder has the same name on several machines that do not share it. Tables that others have written have no such file,
and are read as they are. Not here: the Parquet files themselves (`table_place`, `table_files`).
"""

from __future__ import annotations

import socket
import time
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.data import texts
from shoal.data.tables.part_writing import MARKER
from shoal.data.tables.table_place import (
    SeenTables,
    is_empty,
    is_folder,
    public_url,
    read_beside,
    rows_in,
    seen_tables,
    write_beside,
)
from shoal.errors import DataError, UsageError

MOST = 4096  # bytes of the file
LATE = 60.0  # seconds after which a shared folder shows every file: NFS keeps lists of names for up to a minute
LOOK = 1.0  # seconds between two looks

Count = Annotated[int, Meta(ge=0, le=2**62)]


class RowsWritten(msgspec.Struct, frozen=True):
    """A table, in numbers."""

    is_whole: bool
    files: Count = 0
    rows: Count = 0
    bytes: Count = 0


def marker_at(place: str) -> RowsWritten | None:
    """None: Shoal has not written what is there."""
    content = read_beside(place, MARKER, MOST + 1)
    if content is None:
        return None
    try:
        if len(content) > MOST:
            raise msgspec.ValidationError
        return msgspec.json.decode(content, type=RowsWritten)
    except msgspec.MsgspecError:
        raise DataError(texts.marker_damaged(public_url(place), MARKER)) from None


def begin(place: str) -> None:
    """From now on, until `finish`, nobody reads the table. Raises `UsageError` where there is something already."""
    if not is_empty(place):
        raise UsageError(_refusal(public_url(place), marker_at(place)))
    write_beside(place, MARKER, msgspec.json.encode(RowsWritten(is_whole=False)))


def finish(place: str, written: RowsWritten) -> None:
    """All rows were written. Raises `DataError` if this machine sees more or less than that."""
    if not written.rows:
        raise DataError(texts.NO_SAMPLES)
    compared(place, written)
    write_beside(place, MARKER, msgspec.json.encode(written))


def compared(place: str, written: RowsWritten) -> SeenTables:
    """What this machine sees at a place. Raises `DataError` if it is not what was written, or the table not whole."""
    if not written.is_whole:
        raise DataError(texts.table_unfinished(public_url(place)))
    seen = _seen_by_now(place, 0 if marker_at(place) is None else written.files)
    if (len(seen.paths), seen.bytes) == (written.files, written.bytes):
        return seen
    raise DataError(texts.tables_differ(public_url(place), socket.gethostname(), _amount(seen), _amount_of(written)))


def counted(place: str, rows: int) -> RowsWritten:
    """A table of so many rows, by a cluster that does not say in how many files it has written them.

    Raises `DataError` if this machine does not see just these rows.
    """
    limit = time.monotonic() + LATE
    while True:
        seen = seen_tables(place)
        found = rows_in(place, seen.paths)
        if found == rows:
            return RowsWritten(is_whole=True, files=len(seen.paths), rows=rows, bytes=seen.bytes)
        if found > rows or not is_folder(place) or time.monotonic() > limit:
            raise DataError(texts.rows_differ(public_url(place), socket.gethostname(), found, rows))
        time.sleep(LOOK)


def _seen_by_now(place: str, files: int) -> SeenTables:
    """What this machine sees at a place, once it is so many files, or when a shared folder would have shown them."""
    limit = time.monotonic() + LATE
    while True:
        seen = seen_tables(place)
        if len(seen.paths) >= files or not is_folder(place) or time.monotonic() > limit:
            return seen
        time.sleep(LOOK)


def _refusal(place: str, there: RowsWritten | None) -> str:
    if there is None:
        return texts.place_in_use(place)
    return texts.table_is_there(place, there.rows) if there.is_whole else texts.table_unfinished(place)


def _amount(seen: SeenTables) -> str:
    return texts.amount(len(seen.paths), seen.bytes)


def _amount_of(written: RowsWritten) -> str:
    return texts.amount(written.files, written.bytes)
