"""Which store a setting means: a folder, or any URL that fsspec knows. Also here: a store that fails on purpose."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from shoal.checkpoint.stores.local_store import LocalStore
from shoal.checkpoint.stores.store import Buffer, Store

FOLDER = "checkpoints"  # in a run directory
LOCAL = ("file://", "local://")


def open_store(url_or_folder: str) -> Store:
    """Open a store; a URL that cannot work raises UsageError. Only the first use shows whether it can be reached."""
    for scheme in LOCAL:
        if url_or_folder.startswith(scheme):
            return LocalStore(Path(url_or_folder.removeprefix(scheme)))
    if "://" not in url_or_folder:
        return LocalStore(Path(url_or_folder))
    from shoal.checkpoint.stores.remote_store import RemoteStore  # noqa: PLC0415  most jobs need no fsspec

    return RemoteStore(url_or_folder)


def store_for(run_dir: Path, checkpoint_to: str) -> Store:
    """A run's own store: several runs may share the place that `--checkpoint-to` names."""
    if not checkpoint_to:
        return LocalStore(run_dir / FOLDER)
    between = "" if checkpoint_to.endswith("/") else "/"
    return open_store(f"{checkpoint_to}{between}{run_dir.resolve().name}")


class FullDiskStore(Store):
    """A store that fails as a full disk does, while it is told to: a fault on purpose (`--chaos "fill-disk ..."`)."""

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
