"""The checkpoints of a run that a command names, and choosing one of them. No torch: listing must not wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from shoal.checkpoint.published import catalogue
from shoal.checkpoint.stores.opening import store_for
from shoal.checkpoint.stores.store import Store
from shoal.cli import texts
from shoal.disk.find_run import find_run
from shoal.disk.run_directory import CONFIG
from shoal.errors import CheckpointUnusable, UsageError
from shoal.job_config import from_mapping, read_toml


@contextlib.contextmanager
def run_store(run: str) -> Iterator[tuple[Path, Store]]:
    """The run directory and the store that its settings name. A store that fails ends the command with exit code 9."""
    run_dir = find_run(run)
    config = from_mapping(read_toml(run_dir / CONFIG), origin=str(run_dir / CONFIG))
    store = store_for(run_dir, config.checkpoint_to)
    try:
        yield run_dir, store
    except OSError as error:
        raise CheckpointUnusable(texts.checkpoints_unusable(store.place, error)) from None


def chosen(store: Store, text: str) -> str:
    """The checkpoint with this name or mark; the newest one where `text` is empty."""
    names = tuple(listed.name for listed in catalogue.published(store))
    if not names:
        raise CheckpointUnusable(texts.none_published(store.place))
    marked = catalogue.marks(store)
    name = marked.get(text, text) if text else names[0]
    if name not in names:
        raise UsageError(texts.no_such_checkpoint(text, store.place, (*names, *marked)))
    return name
