"""Checkpoints in a folder of this machine, or of one that all machines have mounted.

A file is written beside its place under a hidden name, flushed to the disk, renamed, and its folder flushed: it is
there whole or not at all, even after a loss of power. Files that killed writers left are hidden and go with their
folder. Files are read, not mapped: a bad sector of a mapped file would kill the process, a read raises OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from shoal.checkpoint.stores.direct_write import DirectWriter
from shoal.checkpoint.stores.names import checked_parts
from shoal.checkpoint.stores.store import Buffer, Store
from shoal.files import open_plain


class LocalStore(Store):
    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._root = folder

    def write(self, name: str, chunks: Iterable[Buffer]) -> None:
        path = self._path(name)
        _make_folder(path.parent)
        aside = path.parent / f".{path.name[:100]}-{secrets.token_hex(8)}"
        try:
            with aside.open("xb", buffering=0) as file:
                DirectWriter(file.fileno()).write(chunks)
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
        _flush_folder(path.parent)

    def read(self, name: str, start: int = 0, end: int | None = None) -> Buffer:
        with open_plain(self._path(name)) as file:
            size = os.fstat(file.fileno()).st_size
            data = bytearray(max(0, min(size, size if end is None else end) - start))
            file.seek(start)
            rest = memoryview(data)
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
        if rest:  # the file became shorter while it was read
            return memoryview(data)[: len(data) - len(rest)]
        return data

    def size(self, name: str) -> int:
        path = self._path(name)
        try:
            found = path.stat()
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise FileNotFoundError(errno.ENOENT, "It is a link that leads nowhere", str(path)) from None
            raise
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "It is no plain file", str(path))
        return found.st_size

    def names(self, folder: str = "") -> list[str]:
        path = self._path(folder) if folder else self._root
        try:
            return sorted(entry.name for entry in os.scandir(path) if not entry.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, name: str) -> None:
        path = self._path(name)
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            _flush_folder(path.parent)
        except FileNotFoundError:
            if path.exists():  # another process is removing the folder too, and was first with one of its files
                self.remove(name)

    def _path(self, name: str) -> Path:
        return self._root.joinpath(*checked_parts(name))


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, and flush each to the disk before anything is put into it."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
