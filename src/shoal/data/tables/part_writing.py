"""What a process of a cluster does to write a part of a table: one Parquet file, where the part lies.

It runs in tasks of Ray and Dask, so it imports no torch. A part is written under a name of its own, which is the same
if the task is run again: a part is there once. Not here: Spark, whose executors write by themselves.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fsspec.core  # type: ignore[import-untyped]  # fsspec has no types

MARKER = "_shoal_rows.json"  # is at the place before the first part is written


class WrittenPart(NamedTuple):
    """One part, or several together."""

    files: int
    rows: int
    bytes: int
    missed: int = 0  # rows that were not written, since the host does not see the place that the launcher sees
    blind: str = ""  # that host


def write_part(place: str, name: str, table: Any) -> WrittenPart:
    """Write a `pyarrow.Table` as file `name` of a folder or URL."""
    import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: PLC0415  an extra; has no types

    filesystem, root = fsspec.core.url_to_fs(place)
    filesystem.invalidate_cache()
    if not filesystem.exists(f"{root.rstrip('/')}/{MARKER}"):
        return WrittenPart(0, 0, 0, table.num_rows, socket.gethostname())
    path = f"{root.rstrip('/')}/{name}"
    is_folder = type(filesystem).__name__ == "LocalFileSystem"
    # In a folder two runs of one task, of which the first was given up, must not write into the same file.
    goal = str(Path(root, f".{name}-{secrets.token_hex(8)}")) if is_folder else path
    with filesystem.open(goal, "wb") as opened:
        pyarrow.parquet.write_table(table, opened)
        size = int(opened.tell())
    if is_folder:
        Path(goal).replace(path)
    return WrittenPart(1, table.num_rows, size)


def together(parts: Sequence[WrittenPart]) -> WrittenPart:
    return WrittenPart(
        sum(part.files for part in parts),
        sum(part.rows for part in parts),
        sum(part.bytes for part in parts),
        sum(part.missed for part in parts),
        ", ".join(sorted({part.blind for part in parts if part.blind})),
    )
