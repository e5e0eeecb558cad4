"""A store that fails as a full disk does, while it is told to: a fault on purpose (`--chaos "fill-disk ..."`)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable

from shoal.checkpoint.stores.store import Buffer, Store


class FullDiskStore(Store):
    def __init__(self, store: Store, is_full: Callable[[], bool]) -> None:
        self._store = store
        self._is_full = is_full
        self.place = store.place

    def write(self, name: str, chunks: Iterable[Buffer]) -> None:
        if self._is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        self._store.write(name, chunks)

    def read(self, name: str, start: int = 0, end: int | None = None) -> Buffer:
        return self._store.read(name, start, end)

    def size(self, name: str) -> int:
        return self._store.size(name)

    def names(self, folder: str = "") -> list[str]:
        return self._store.names(folder)

    def remove(self, name: str) -> None:
        self._store.remove(name)
