"""What may be given as data: each kind gets its feed, and each mistake one line with the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from shoal.data import texts
from shoal.data.map_feed import MapFeed
from shoal.data.seeding import may_be_random
from shoal.data.sources import FeedOptions, feed_for
from shoal.data.stream_feed import StreamFeed
from shoal.errors import DataError, UsageError
from shoal.values import Cursor
from support.data import Augmented, Counting, as_list, epoch_of, equal_dealings

TABLE = TensorDataset(torch.arange(10))


class Squares:
    """No torch class at all, only the two methods."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return index * index


class Plain:
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ([0, 1, 4], MapFeed),
        ((0, 1, 4), MapFeed),
        (range(5), MapFeed),
        (Squares(), MapFeed),
        (TABLE, MapFeed),
        (Counting(5), StreamFeed),
        (Plain(), StreamFeed),
        (iter([1, 2]), StreamFeed),
        (DataLoader(TABLE, batch_size=2), MapFeed),
        (DataLoader(Counting(5), batch_size=2), StreamFeed),
    ],
)
def test_each_kind_of_data_gets_its_feed(data: Any, kind: type) -> None:
    feed = feed_for(data, FeedOptions(batch_size=2))
    assert type(feed) is kind
    assert feed.batch_size == 2


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("data", "fix"),
    [
        (torch.zeros(4, 2), "TensorDataset"),
        (np.zeros((4, 2)), "TensorDataset"),
        ((torch.zeros(4, 2), torch.zeros(4)), "TensorDataset"),
        ("words", "list of samples"),
        ({"x": [1, 2]}, "list of samples"),
        ({1, 2, 3}, "sorted"),
        (Squares, "an instance"),
        (NoLength(), "__len__"),
        (7, "give a Dataset"),
        (None, "give a Dataset"),
    ],
)
def test_what_is_no_data_set_is_refused_with_the_fix(data: Any, fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        feed_for(data, FeedOptions(batch_size=2))


@pytest.mark.parametrize("batch_size", [None, 0, -3, 2.5, True])
def test_a_batch_size_is_needed(batch_size: Any) -> None:
    with pytest.raises(UsageError, match="batch_size"):
        feed_for([1, 2, 3], FeedOptions(batch_size=batch_size))


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match=texts.NO_SAMPLES):
        feed_for([], FeedOptions(batch_size=1))


def test_loaders_below_zero_are_refused() -> None:
    with pytest.raises(UsageError, match=re.escape(texts.bad_loaders(-1))):
        feed_for([1], FeedOptions(batch_size=1, loaders=-1))


def samples_of(loader: DataLoader[Any], **options: Any) -> list[Any]:
    batch_size = loader.batch_size
    assert batch_size is not None
    return epoch_of(feed_for(loader, FeedOptions(**options)), equal_dealings(2, batch_size))


def test_a_data_loader_says_whether_to_shuffle() -> None:
    def loader(**options: Any) -> DataLoader[Any]:
        return DataLoader(range(30), batch_size=4, collate_fn=as_list, **options)  # type: ignore[arg-type]  a range is no Dataset to mypy

    in_order = list(range(30))
    shuffled = samples_of(loader(shuffle=True))
    assert samples_of(loader()) == in_order
    assert samples_of(loader(sampler=SequentialSampler(range(30)))) == in_order
    assert shuffled != in_order
    assert sorted(shuffled) == in_order
    # The order comes from Shoal's seed; a generator of the DataLoader's has no part in it.
    assert samples_of(loader(shuffle=True, generator=torch.Generator().manual_seed(5))) == shuffled
    assert samples_of(loader(shuffle=True), seed=1) != shuffled


def test_a_data_loader_drops_an_incomplete_batch() -> None:
    loader = DataLoader(range(30), batch_size=4, collate_fn=as_list, drop_last=True)  # type: ignore[arg-type]  a range is no Dataset to mypy
    assert samples_of(loader) == list(range(24))
    feed = feed_for(loader, FeedOptions())
    assert feed.steps(equal_dealings(2, 4)[0]) == 3
    with pytest.raises(DataError, match=texts.nothing_left(30, workers=8, batch_size=4)):
        feed.batches(Cursor(), equal_dealings(8, 4)[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sampler": SubsetRandomSampler([1, 2])}, texts.own_sampler("SubsetRandomSampler")),
        ({"sampler": RandomSampler(TABLE, replacement=True)}, texts.own_sampler("RandomSampler")),
        ({"sampler": RandomSampler(TABLE, num_samples=5)}, texts.own_sampler("RandomSampler")),
        *(
            (
                {"sampler": DistributedSampler(TABLE, num_replicas=2, rank=0, shuffle=shuffle)},
                texts.distributed_sampler("DistributedSampler", shuffle=shuffle),
            )
            for shuffle in (True, False)
        ),
        (
            {"batch_sampler": BatchSampler(RandomSampler(TABLE), 2, False)},
            texts.no_loader_batch_size(has_batch_sampler=True),
        ),
        ({"batch_size": None}, texts.no_loader_batch_size(has_batch_sampler=False)),
    ],
)
def test_a_data_loader_that_chooses_samples_itself_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        feed_for(DataLoader(TABLE, **options), FeedOptions())


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"loaders": 2}, {"collate": as_list}])
def test_contradictions_between_call_and_data_loader_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(options))} is .*DataLoader"):
        feed_for(DataLoader(TABLE, batch_size=2, num_workers=1), FeedOptions(**options))


def test_agreeing_with_the_data_loader_is_fine() -> None:
    assert feed_for(DataLoader(TABLE, batch_size=2), FeedOptions(batch_size=2)).batch_size == 2


class Derived(TensorDataset):
    pass


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([1], False),
        (range(3), False),
        (TABLE, False),
        (Subset(TABLE, [1, 2]), False),
        (ConcatDataset([TABLE, Subset(TABLE, [0])]), False),
        (Derived(torch.zeros(3)), True),
        (Subset(Augmented(3), [0]), True),
        (ConcatDataset([TABLE, Augmented(3)]), True),
        (Squares(), True),
    ],
)
def test_only_known_types_go_without_seeding(data: Any, expected: bool) -> None:
    assert may_be_random(data) is expected


def test_an_iterable_data_set_may_have_a_length() -> None:
    class Both(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

        def __len__(self) -> int:
            return 4

    feed = feed_for(Both(), FeedOptions(batch_size=2, collate=as_list))
    assert type(feed) is StreamFeed
    assert epoch_of(feed, equal_dealings(1, 2)) == list(range(4))
