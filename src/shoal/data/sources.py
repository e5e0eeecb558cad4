"""What a user may give as data, and the feed that each kind gets. Anything else is refused here, with the fix.

Map-style: a torch Dataset or anything else with `__getitem__` and `__len__`. Streams: an IterableDataset or any other
iterable, and `Files`. Of a torch DataLoader, the data set and the settings are used; order and dealing are Shoal's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from shoal.data import texts
from shoal.data.dealing import Dealing, check_enough
from shoal.data.feed import Feed
from shoal.data.loading import LoadSettings
from shoal.data.map_feed import MapFeed
from shoal.data.stream_feed import StreamFeed
from shoal.data.streams import Files, FileStream, IterableStream
from shoal.errors import UsageError

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class FeedOptions:
    """The arguments of a call such as `run.batches`, besides the data."""

    batch_size: int | None = None  # per worker; None: the DataLoader's
    seed: int = 0
    shuffle: bool = True  # ignored for a DataLoader, whose sampler decides
    loaders: int = 0  # background processes per worker
    collate: Collate | None = None
    own_data: bool = False  # each worker's data are its own: samples are not compared
    world_size: int = 1  # for refusing too small a data set before any loop starts


def feed_for(data: object, options: FeedOptions) -> Feed:
    """The feed of any supported data."""
    feed = _feed_for(data, options)
    feed.own_data = options.own_data
    return feed


def _feed_for(data: object, options: FeedOptions) -> Feed:
    if options.loaders < 0:
        raise UsageError(texts.bad_loaders(options.loaders))
    if isinstance(data, DataLoader):
        data, options, settings = _from_data_loader(data, options)
    else:
        settings = LoadSettings(processes=options.loaders, collate=options.collate or default_collate)
        _refuse_lookalikes(data)
    batch_size = _checked_batch_size(options.batch_size)
    if isinstance(data, Files):
        stream = FileStream(data, seed=options.seed, shuffle=options.shuffle)
        return StreamFeed(stream, settings, batch_size=batch_size, seed=options.seed)
    if _is_map_style(data):
        feed = MapFeed(data, settings, batch_size=batch_size, seed=options.seed, shuffle=options.shuffle)
        check_enough(feed.samples, Dealing(rank=0, shares=(1,) * options.world_size, batch_size=batch_size))
        return feed
    if isinstance(data, Iterable):
        return StreamFeed(IterableStream(data), settings, batch_size=batch_size, seed=options.seed)
    raise UsageError(texts.no_data(data))


def _checked_batch_size(batch_size: int | None) -> int:
    if batch_size is None:
        raise UsageError(texts.NO_BATCH_SIZE)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(texts.bad_batch_size(batch_size))
    return batch_size


def _refuse_lookalikes(data: object) -> None:
    """Refuse objects that have the methods of a data set but are none."""
    arrays = (torch.Tensor, np.ndarray)
    if isinstance(data, arrays) or (
        isinstance(data, tuple) and len(data) > 0 and all(isinstance(part, arrays) for part in data)
    ):
        raise UsageError(texts.given_arrays(data))
    if isinstance(data, (str, bytes, Mapping)):
        raise UsageError(texts.given_no_samples(data))
    if isinstance(data, (set, frozenset)):
        raise UsageError(texts.given_a_set(data))
    if isinstance(data, type):
        raise UsageError(texts.given_a_class(data))


def _is_map_style(data: object) -> bool:
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        return False
    try:
        len(data)  # type: ignore[arg-type]  # whether it has a length is the question
    except (TypeError, NotImplementedError):  # some data sets have a __len__ that only raises
        if hasattr(data, "__iter__"):
            return False
        raise UsageError(texts.no_length(data)) from None
    return True


def _from_data_loader(loader: DataLoader[Any], options: FeedOptions) -> tuple[object, FeedOptions, LoadSettings]:
    """The loader's data set, and the call's options overridden by the loader's."""
    shuffle = False if isinstance(loader.dataset, IterableDataset) else _is_shuffled(loader)
    if loader.batch_size is None:
        raise UsageError(texts.no_loader_batch_size(has_batch_sampler=loader.batch_sampler is not None))
    _same("batch_size", options.batch_size, loader.batch_size)
    _same("collate", options.collate, loader.collate_fn)
    _same("loaders", options.loaders or None, loader.num_workers)
    settings = LoadSettings(
        processes=loader.num_workers,
        collate=loader.collate_fn,
        drop_last=loader.drop_last,
        worker_init_fn=loader.worker_init_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        prefetch_factor=loader.prefetch_factor,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
    )
    return loader.dataset, replace(options, batch_size=loader.batch_size, shuffle=shuffle), settings


def _same(name: str, in_call: object, in_loader: object) -> None:
    if in_call is not None and in_call != in_loader:
        raise UsageError(texts.contradiction(name, in_call, in_loader))


def _is_shuffled(loader: DataLoader[Any]) -> bool:
    """Whether the sampler shuffles. A sampler that chooses samples itself is refused: dealing is Shoal's."""
    sampler = loader.sampler
    if loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler:
        if type(sampler) is SequentialSampler:
            return False
        if type(sampler) is RandomSampler and not sampler.replacement:
            size = len(loader.dataset)  # type: ignore[arg-type]  # one that a RandomSampler was made for has a length
            if sampler.num_samples == size:
                return True
    if isinstance(sampler, DistributedSampler):
        raise UsageError(texts.distributed_sampler(type(sampler).__name__, shuffle=sampler.shuffle))
    raise UsageError(texts.own_sampler(type(sampler).__name__))
