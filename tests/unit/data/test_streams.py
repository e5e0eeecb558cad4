"""Streams: every worker reads all and takes its positions; regrouping and resuming lose and repeat nothing."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from shoal.data import texts
from shoal.data.feed import Feed
from shoal.data.sources import FeedOptions, feed_for
from shoal.errors import DataError, UsageError
from shoal.values import Cursor
from support.data import AugmentedStream, Counting, as_list, batches_of, epoch_of, equal_dealings, steps_of


def stream_feed(stream: Any, batch_size: int, **options: Any) -> Feed:
    return feed_for(stream, FeedOptions(batch_size=batch_size, collate=as_list, **options))


@settings(deadline=None)
@given(
    size=st.integers(1, 120), world_size=st.integers(1, 10), batch_size=st.integers(1, 5), accumulate=st.integers(1, 3)
)
def test_every_sample_once_per_epoch(size: int, world_size: int, batch_size: int, accumulate: int) -> None:
    dealings = equal_dealings(min(world_size, size), batch_size, accumulate)
    # One feed per worker, as in a job; here they run one after the other.
    parts = [
        [
            sample
            for batch in batches_of(stream_feed(Counting(size), batch_size), dealing)
            for sample in batch.data[: batch.samples]
        ]
        for dealing in dealings
    ]
    assert sorted(functools.reduce(operator.iadd, parts, [])) == list(range(size))


@pytest.mark.parametrize("loaders", [0, 1, 2])
def test_steps_are_those_of_one_worker(loaders: int) -> None:
    feed = stream_feed(Counting(41), 3, loaders=loaders)
    many = list(steps_of(feed, Cursor(), equal_dealings(3, 3, 2)))
    assert many == list(steps_of(stream_feed(Counting(41), 9), Cursor(), equal_dealings(1, 9, 2)))
    assert [sample for step in many for sample in step.samples] == list(range(41))


def test_random_streams_are_the_same_for_all_workers_and_loaders() -> None:
    def samples(world_size: int, loaders: int, epoch: int = 0) -> list[Any]:
        return epoch_of(stream_feed(AugmentedStream(20), 3, loaders=loaders), equal_dealings(world_size, 3), epoch)

    alone = samples(1, 0)
    assert [sample[0] for sample in alone] == list(range(20))
    assert samples(3, 0) == samples(1, 2) == samples(3, 2) == alone
    assert samples(1, 0, epoch=1) != alone


def test_a_random_stream_leaves_the_training_loop_generators_alone() -> None:
    before = torch.get_rng_state()
    batches_of(stream_feed(AugmentedStream(20), 3), equal_dealings(1, 3)[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_newcomer_enters_at_the_cursor(loaders: int) -> None:
    feed = stream_feed(AugmentedStream(50), 4, loaders=loaders)
    whole = epoch_of(feed, equal_dealings(1, 4))
    entered = steps_of(feed, Cursor(position=17), equal_dealings(2, 4))
    assert [sample for step in entered for sample in step.samples] == whole[17:]


def test_regrouping_reads_nothing_twice() -> None:
    """The void step is redone from memory, with another dealing; the stream is read on from where it stood."""
    stream = Counting(30)
    feed = stream_feed(stream, 4)
    before = feed.batches(Cursor(), equal_dealings(2, 4)[0])
    assert [next(before).data, next(before).data] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    before.close()
    redone = batches_of(feed, equal_dealings(1, 4)[0], Cursor(position=8))
    assert [batch.data for batch in redone] == [list(range(at, min(at + 4, 30))) for at in range(8, 30, 4)]
    assert stream.read == 30


def test_a_one_shot_iterator_survives_a_regroup_but_not_a_second_epoch() -> None:
    feed = stream_feed((number for number in range(20)), 4)
    dealing = equal_dealings(1, 4)[0]
    first = feed.batches(Cursor(), dealing)
    next(first)
    first.close()
    assert [batch.data[0] for batch in batches_of(feed, dealing)] == [0, 4, 8, 12, 16]
    with pytest.raises(DataError, match=texts.read_already("generator", 0, 1)):
        batches_of(feed, dealing, Cursor(epoch=1))


def test_a_one_shot_iterator_cannot_be_read_in_several_processes() -> None:
    with pytest.raises(UsageError, match=texts.read_only_once("list_iterator", 2)):
        stream_feed(iter([1, 2]), 1, loaders=2)


def test_an_iterable_that_does_not_start_anew_is_noticed() -> None:
    class Spent(IterableDataset[int]):
        def __init__(self) -> None:
            self.numbers = iter(range(5))

        def __iter__(self) -> Iterator[int]:
            return self.numbers

    feed = stream_feed(Spent(), 2)
    batches_of(feed, equal_dealings(1, 2)[0])
    with pytest.raises(DataError, match=texts.does_not_start_anew("Spent", 1)):
        batches_of(feed, equal_dealings(1, 2)[0], Cursor(epoch=1))


@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize(
    ("size", "position", "text"),
    [
        (0, 0, texts.NO_SAMPLES),
        (2, 0, texts.too_few_samples(2, 3)),
        (9, 12, texts.stream_shorter(Cursor(position=12), "Counting", 9)),
    ],
)
def test_too_short_streams_are_refused(size: int, position: int, text: str, loaders: int) -> None:
    with pytest.raises(DataError, match=re.escape(text)):
        batches_of(stream_feed(Counting(size), 2, loaders=loaders), equal_dealings(3, 2)[0], Cursor(position=position))


def test_the_end_of_the_stream_is_a_valid_cursor() -> None:
    assert batches_of(stream_feed(Counting(12), 2), equal_dealings(3, 2)[0], Cursor(position=12)) == []


class Failing(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(6)
        raise OSError("disk on fire")


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_stream_that_fails_is_never_taken_for_a_short_one(loaders: int) -> None:
    feed = stream_feed(Failing(), 2, loaders=loaders)
    said = texts.stream_failed("Failing", 6, 0, "OSError: disk on fire")
    for _ in range(2):  # also when asked again
        batches = feed.batches(Cursor(), equal_dealings(1, 2)[0])
        assert [next(batches).data for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(DataError, match=said) as caught:
            next(batches)
        assert "disk on fire" in str(caught.value.__cause__)
    with pytest.raises(DataError, match=said):
        batches_of(feed, equal_dealings(1, 2)[0], Cursor(position=6))


def test_stand_ins_of_a_stream_are_its_own_samples() -> None:
    last = [batches_of(stream_feed(Counting(14), 4), dealing)[-1] for dealing in equal_dealings(3, 4)]
    assert [(batch.data, batch.samples, batch.step_samples) for batch in last] == [
        ([12, 13], 2, 2),
        ([12, 13], 0, 2),
        ([12, 13], 0, 2),
    ]


@pytest.mark.parametrize("loaders", [0, 2])
def test_drop_last_leaves_an_incomplete_batch_out(loaders: int) -> None:
    loader = DataLoader(Counting(20), batch_size=3, drop_last=True, collate_fn=as_list, num_workers=loaders)
    feed = feed_for(loader, FeedOptions())
    assert epoch_of(feed, equal_dealings(2, 3)) == list(range(18))
    with pytest.raises(DataError, match=texts.nothing_left(20, workers=8, batch_size=3)):
        batches_of(feed, equal_dealings(8, 3)[0])


def test_a_stream_that_splits_itself_over_processes_is_still_read_once() -> None:
    """The pattern of torch's documentation; inside a loader process of ours it finds itself alone."""

    class Splitting(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = torch.utils.data.get_worker_info()
            return iter(range(30) if info is None else range(info.id, 30, info.num_workers))

    for processes in (0, 2):
        loader = DataLoader(Splitting(), batch_size=4, num_workers=processes, collate_fn=as_list)
        assert epoch_of(feed_for(loader, FeedOptions()), equal_dealings(2, 4)) == list(range(30))


def test_random_collating_depends_on_the_batch_alone() -> None:
    def noisy(samples: list[int]) -> list[tuple[int, float]]:
        noise = torch.rand(()).item()
        return [(sample, noise) for sample in samples]

    def run(loaders: int) -> list[Any]:
        feed = feed_for(Counting(12), FeedOptions(batch_size=3, loaders=loaders, collate=noisy))
        return [batch.data for batch in batches_of(feed, equal_dealings(1, 3)[0])]

    assert run(0) == run(2)
    assert len({batch[0][1] for batch in run(0)}) == 4


def test_length_is_told_where_the_stream_announces_it() -> None:
    class Sized(Counting):
        def __len__(self) -> int:
            return self.size

    assert stream_feed(Counting(9), 2).samples is None
    assert stream_feed(Sized(9), 2).samples == 9
    assert stream_feed(Sized(9), 2).steps(equal_dealings(2, 2)[0]) == 3
