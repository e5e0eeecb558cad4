"""Map-style data: each sample once for any number of workers, the same samples per step as one worker would see."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from shoal.data import texts
from shoal.data.feed import Feed
from shoal.data.loading import described
from shoal.data.order import sample_order
from shoal.data.sources import FeedOptions, feed_for
from shoal.errors import DataError
from shoal.values import Cursor
from support.data import Augmented, as_list, batches_of, epoch_of, equal_dealings, steps_of
from support.examples import scaled


def list_feed(size: int, batch_size: int, **options: Any) -> Feed:
    return feed_for(list(range(size)), FeedOptions(batch_size=batch_size, collate=as_list, **options))


@settings(max_examples=scaled(50), deadline=None)
@given(
    size=st.integers(1, 100), world_size=st.integers(1, 12), batch_size=st.integers(1, 6), accumulate=st.integers(1, 3)
)
def test_every_sample_once_per_epoch(size: int, world_size: int, batch_size: int, accumulate: int) -> None:
    world_size = min(world_size, size)
    feed = list_feed(size, batch_size, seed=3)
    dealings = equal_dealings(world_size, batch_size, accumulate)
    assert sorted(epoch_of(feed, dealings)) == list(range(size))
    assert feed.steps(dealings[0]) == len(list(steps_of(feed, Cursor(), dealings)))


@settings(max_examples=scaled(40), deadline=None)
@given(
    size=st.integers(12, 150),
    batch_size=st.integers(1, 6),
    worlds=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), min_size=2, max_size=5),
)
def test_every_sample_once_when_workers_come_and_go(size: int, batch_size: int, worlds: list[tuple[int, int]]) -> None:
    feed, cursor, seen = list_feed(size, batch_size, seed=9), Cursor(epoch=2), []
    for world_size, steps in [*worlds, (3, size)]:
        for _, step in zip(range(steps), steps_of(feed, cursor, equal_dealings(world_size, batch_size)), strict=False):
            seen += step.samples
            cursor = step.cursor_after
    assert sorted(seen) == list(range(size))
    assert cursor == Cursor(epoch=2, position=size)


@pytest.mark.parametrize("world_size", [2, 3, 7, 10])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_many_workers_see_per_step_what_one_would(world_size: int, accumulate: int) -> None:
    feed = list_feed(101, 4)
    many = list(steps_of(feed, Cursor(), equal_dealings(world_size, 4, accumulate)))
    one = list(steps_of(feed, Cursor(), equal_dealings(1, 4 * world_size, accumulate)))
    assert many == one


def test_order_is_the_keyed_one_and_changes_with_the_epoch() -> None:
    feed = list_feed(50, 4, seed=11)
    dealings = equal_dealings(3, 4)
    for epoch in (0, 1):
        assert epoch_of(feed, dealings, epoch) == sample_order(seed=11, epoch=epoch, size=50).between(0, 50).tolist()
    assert epoch_of(list_feed(50, 4, shuffle=False), dealings) == list(range(50))


def test_the_tail_goes_to_few_workers_and_others_get_stand_ins() -> None:
    feed = list_feed(35, 4, shuffle=False)
    last = [batches_of(feed, dealing)[-1] for dealing in equal_dealings(4, 4)]
    assert [(batch.data, batch.samples) for batch in last] == [([32, 33, 34], 3)] + [([0, 1], 0)] * 3
    assert {batch.step_samples for batch in last} == {3}


def test_a_stand_in_of_a_single_sample_repeats_it() -> None:
    batches = batches_of(list_feed(1, 4), equal_dealings(1, 4, accumulate=2)[0])
    assert [(batch.data, batch.samples) for batch in batches] == [([0], 1), ([0, 0], 0)]


def test_nothing_is_left_at_the_end_of_the_epoch() -> None:
    assert batches_of(list_feed(10, 4), equal_dealings(1, 4)[0], Cursor(position=10)) == []


@pytest.mark.parametrize("chosen", [None, [5, 3, 19, 0, 7, 11, 2, 8]])
def test_tables_give_what_torch_collating_gives(chosen: list[int] | None) -> None:
    """Tensor data sets are indexed whole; a subclass of them is not, and goes through torch's own collating."""

    class Slow(TensorDataset):
        pass

    tensors = torch.randn(20, 3), torch.arange(20)
    fast, slow = (kind(*tensors) for kind in (TensorDataset, Slow))
    if chosen:
        fast, slow = (Subset(Subset(data, list(range(20))), chosen) for data in (fast, slow))
    found = [batches_of(feed_for(data, FeedOptions(batch_size=4)), equal_dealings(2, 4)[1]) for data in (fast, slow)]
    assert len(found[0]) == len(found[1]) > 0
    for quick, plain in zip(*found, strict=True):
        assert type(quick.data) is type(plain.data) is list
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(quick.data, plain.data, strict=True))


def augmented(world_size: int, loaders: int) -> list[Any]:
    feed = feed_for(Augmented(23), FeedOptions(batch_size=3, seed=5, loaders=loaders, collate=as_list))
    return sorted(epoch_of(feed, equal_dealings(world_size, 3), epoch=1))


def test_augmentation_does_not_depend_on_workers_or_loaders() -> None:
    alone = augmented(1, 0)
    assert len({draw for sample in alone for draw in sample[1:]}) == 3 * 23
    assert augmented(3, 0) == augmented(1, 2) == augmented(3, 2) == alone
    with_torch = DataLoader(Augmented(23), batch_size=3, num_workers=1, shuffle=True, collate_fn=as_list)
    assert sorted(epoch_of(feed_for(with_torch, FeedOptions(seed=5)), equal_dealings(2, 3), epoch=1)) == alone


def test_augmentation_differs_between_epochs() -> None:
    feed = feed_for(Augmented(8), FeedOptions(batch_size=3, collate=as_list))
    assert sorted(epoch_of(feed, equal_dealings(1, 3), 0)) != sorted(epoch_of(feed, equal_dealings(1, 3), 1))


@pytest.mark.parametrize("loaders", [0, 1])
def test_loading_leaves_the_training_loop_generators_alone(loaders: int) -> None:
    def states() -> tuple[bytes, object, bytes]:
        return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()[1].tobytes()

    feed = feed_for(Augmented(9), FeedOptions(batch_size=2, loaders=loaders))
    before = states()
    unchanged = [states() == before for _ in feed.batches(Cursor(), equal_dealings(1, 2)[0])]
    assert unchanged == [True] * 5
    assert states() == before


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise KeyError("no such picture\nat all")
        return index


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_sample_that_fails_is_named_with_its_cause(loaders: int) -> None:
    feed = feed_for(Broken(), FeedOptions(batch_size=2, shuffle=False, loaders=loaders))
    batches = feed.batches(Cursor(), equal_dealings(1, 2)[0])
    assert [next(batches).data.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    why = described(KeyError("no such picture\nat all"))
    with pytest.raises(DataError, match=f"^{re.escape(texts.sample_failed(4, 'Broken', why))}$") as caught:
        next(batches)
    assert "\n" not in str(caught.value)
    assert "no such picture" in str(caught.value.__cause__)


@pytest.mark.parametrize("loaders", [0, 1])
def test_samples_that_do_not_fit_together_are_one_line(loaders: int) -> None:
    feed = feed_for([torch.zeros(2), torch.zeros(3)], FeedOptions(batch_size=2, loaders=loaders))
    said = re.escape(texts.not_collated("default_collate", 2, "WHY")).replace("WHY", "RuntimeError.*")
    with pytest.raises(DataError, match=said) as caught:
        batches_of(feed, equal_dealings(1, 2)[0])
    assert "\n" not in str(caught.value)


def test_fewer_samples_than_workers_names_both() -> None:
    with pytest.raises(DataError, match=re.escape(texts.too_few_samples(3, 4))):
        list_feed(3, 1, world_size=4)
    with pytest.raises(DataError, match=re.escape(texts.too_few_samples(3, 4))):
        list_feed(3, 1).batches(Cursor(), equal_dealings(4, 1)[0])


def test_a_data_set_that_shrank_is_refused() -> None:
    with pytest.raises(DataError, match=texts.data_set_shorter(Cursor(epoch=1, position=20), 10)):
        list_feed(10, 2).batches(Cursor(epoch=1, position=20), equal_dealings(1, 2)[0])
