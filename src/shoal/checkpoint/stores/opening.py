"""Which store a setting means: a folder, or any URL that fsspec knows."""

from __future__ import annotations

from pathlib import Path

from shoal.checkpoint.stores.local_store import LocalStore
from shoal.checkpoint.stores.store import Store

FOLDER = "checkpoints"  # in a run directory
LOCAL = ("file://", "local://")


def open_store(url_or_folder: str) -> Store:
    """UsageError for a URL of which nothing can come. Whether the store can be reached shows with its first use."""
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
