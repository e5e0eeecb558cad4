"""The place of a job's checkpoints, for launcher and coordinator: what is there already, and the publisher.

Imports the modules of a store only when one is used. Not here: the stores and their contents (`shoal.checkpoint`).
"""
# ruff: noqa: PLC0415  the modules of a store are imported when one is used

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from shoal.checkpoint.stores.store import Store
from shoal.disk import texts
from shoal.errors import CheckpointUnusable, RunDirectoryExists, UsageError
from shoal.job_config import JobConfig
from shoal.membership.publisher import Publisher


@dataclass(frozen=True)
class Keeping:
    """What a coordinator needs to know about checkpoints."""

    publisher: Publisher | None = None
    after_generation: int = 0  # the highest generation in the checkpoints of a resumed job
    shares: tuple[int, ...] = ()  # by rank, of the workers that wrote the newest checkpoint


def require_checkpoint(config: JobConfig) -> None:
    """Refuse to resume a job without a checkpoint. Whether the checkpoint is usable shows when it is read."""
    from shoal.checkpoint.published.catalogue import published

    store = _store(config)
    try:
        found = published(store)
    except OSError as error:
        raise _unreachable(store, error) from None
    if not found:
        raise CheckpointUnusable(texts.no_checkpoint(store.place))


def refuse_anothers(config: JobConfig) -> None:
    """Refuse to start a new job that would mix its checkpoints with those of another job of the same name."""
    from shoal.checkpoint.published.catalogue import published

    store = _store(config)
    try:
        found = published(store)
    except OSError as error:
        raise UsageError(texts.checkpoints_not_kept(store.place, error.strerror or error)) from None
    if found:
        raise RunDirectoryExists(texts.anothers_checkpoints(store.place))


def keeping(config: JobConfig, *, is_restart: bool) -> Keeping:
    """For the coordinator. If the job is resumed, remove what its last run left unpublished.

    `is_restart`: the coordinator is started again while the job runs, so that workers may be writing parts.
    """
    if not config.run_dir or not (config.checkpoints.at_end or config.resume):
        return Keeping()
    from shoal.checkpoint.published.catalogue import last_generation
    from shoal.checkpoint.published.store_publisher import StorePublisher

    store = _store(config)
    publisher = StorePublisher(store, keep=config.keep_checkpoints)
    if not config.resume:
        return Keeping(publisher)
    try:
        generation = last_generation(store)  # unpublished ones count too
        if not is_restart:
            with contextlib.suppress(OSError):  # resuming from a read-only store is possible
                publisher.clean()
        return Keeping(publisher, generation, _shares(store))
    except OSError as error:
        raise _unreachable(store, error) from None


def _shares(store: Store) -> tuple[int, ...]:
    from shoal.checkpoint.published.catalogue import load_manifest, published

    for listed in published(store):
        try:
            members = load_manifest(store, listed.name).about.generation.members
        except CheckpointUnusable:  # the workers will report it, and also try the one before
            continue
        return tuple(member.share for member in members)
    return ()


def _store(config: JobConfig) -> Store:
    from shoal.checkpoint.stores.opening import store_for

    return store_for(Path(config.run_dir), config.checkpoint_to)


def _unreachable(store: Store, error: OSError) -> CheckpointUnusable:
    return CheckpointUnusable(texts.checkpoints_unreadable(store.place, error.strerror or error))
