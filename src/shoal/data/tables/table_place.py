"""A folder or URL of a table, as fsspec reaches it: which Parquet files are there, and small files beside them.

What goes wrong with a place becomes one line that names it, without its password. Not here: reading rows
(`table_files`), and whether all are there (`rows_written`).
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import fsspec.core  # type: ignore[import-untyped]  # fsspec has no types

from shoal.data import texts
from shoal.data.loading import described
from shoal.errors import DataError, ShoalError, UsageError

ENDING = ".parquet"
ENDS_AT_ONCE = 16  # files whose last bytes are read at the same time
HIDDEN = ("_", ".")  # beginnings of names of files and folders that hold no rows: _SUCCESS, _temporary, .crc


class SeenTables(NamedTuple):
    """The Parquet files at a place, as this machine sees them."""

    paths: list[str]  # or URLs, sorted
    bytes: int  # of all of them


def seen_tables(place: str) -> SeenTables:
    """The Parquet files below a folder or URL, or the one that it names. Hidden and empty ones are left out."""
    with reached(place):
        filesystem, root = _opened(place)
        if filesystem.isfile(root):
            return SeenTables([place], _size(filesystem.info(root)))
        found = filesystem.find(root, detail=True)
        tables = {name: info for name, info in found.items() if info.get("size") != 0 and _is_table(name, root)}
        names = sorted(tables)
        paths = names if "://" not in place else [filesystem.unstrip_protocol(name) for name in names]
        return SeenTables(paths, sum(map(_size, tables.values())))


def rows_in(place: str, paths: Sequence[str]) -> int:
    """The rows of Parquet files at a place, by what each file says at its end."""
    with reached(place), ThreadPoolExecutor(ENDS_AT_ONCE) as pool:
        return sum(pool.map(_row_count, paths))


def _row_count(path: str) -> int:
    with fsspec.open(path, "rb") as opened, parquet().ParquetFile(opened) as table:
        return int(table.metadata.num_rows)


def parquet() -> ModuleType:
    """Raises `UsageError` if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: PLC0415  an extra; has no types
    except ImportError:
        raise UsageError(texts.NO_PYARROW) from None
    module: ModuleType = pyarrow.parquet
    return module


def is_empty(place: str) -> bool:
    """Whether nothing is there: no file, and no folder that has something in it."""
    with reached(place):
        filesystem, root = _opened(place)
        if filesystem.isfile(root):
            return False
        try:
            names = filesystem.ls(root, detail=False)
        except FileNotFoundError:
            return True
        return not [
            name for name in names if name.rstrip("/") != root.rstrip("/")
        ]  # some stores list a folder in itself


def read_beside(place: str, name: str, most: int) -> bytes | None:
    """The first bytes, at most so many, of the file with this name at a place; None: there is none."""
    with reached(place):
        filesystem, root = _opened(place)
        if filesystem.isfile(root):  # nothing is below it, and S3 may answer 403 for what is not there
            return None
        try:
            with filesystem.open(f"{root.rstrip('/')}/{name}", "rb") as opened:
                return bytes(opened.read(most))
        except (FileNotFoundError, NotADirectoryError):
            return None


def write_beside(place: str, name: str, content: bytes) -> None:
    """Write or replace a small file at a place, as a whole. Makes the folder, if it is one."""
    try:
        filesystem, root = _opened(place)
        path = f"{root.rstrip('/')}/{name}"
        if is_folder(place):
            aside = Path(root, f".{name}-{secrets.token_hex(8)}")
            Path(root).mkdir(parents=True, exist_ok=True)
            aside.write_bytes(content)
            aside.replace(path)
            return
        with filesystem.open(path, "wb") as opened:  # `makedirs` would make a bucket of a misspelt name
            opened.write(content)
    except ImportError as error:
        raise UsageError(texts.no_way_to_tables(public_url(place), str(error))) from None
    except Exception as error:
        raise DataError(texts.place_not_written(public_url(place), _why(error, place))) from error


def is_folder(place: str) -> bool:
    """Whether the place is in a file system of this machine, shared or not."""
    return "://" not in place or place.startswith(("file://", "local://"))


def public_url(place: str) -> str:
    """The place without a user name and password."""
    return re.sub(r"//[^/@]*@", "//", place)


@contextlib.contextmanager
def reached(place: str) -> Iterator[None]:
    """Errors of file systems become one line each."""
    try:
        yield
    except ShoalError:
        raise
    except ImportError as error:
        raise UsageError(texts.no_way_to_tables(public_url(place), str(error))) from None
    except Exception as error:
        raise DataError(texts.tables_unreachable(public_url(place), _why(error, place))) from error


def _opened(place: str) -> tuple[Any, str]:
    filesystem, root = fsspec.core.url_to_fs(place)
    filesystem.invalidate_cache()  # others may have written since this process last looked
    return filesystem, str(root)


def _is_table(name: str, root: str) -> bool:
    below = name.removeprefix(root).split("/")
    return name.endswith(ENDING) and not any(part.startswith(HIDDEN) for part in below)


def _size(info: dict[str, Any]) -> int:
    return int(info.get("size") or 0)


def _why(error: Exception, place: str) -> str:
    return described(error).replace(place, public_url(place))
