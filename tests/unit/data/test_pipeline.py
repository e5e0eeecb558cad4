"""One stretch of positions after the other: the same batches as ever, from the same processes, whatever is foreseen."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from itertools import islice
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.utils.data import DataLoader, Dataset

from shoal.data import texts
from shoal.data.feed import Batch, Feed
from shoal.data.loading import Assembler
from shoal.data.pipeline import _Numbered
from shoal.data.sources import FeedOptions, feed_for
from shoal.errors import DataError
from shoal.values import Cursor
from support.data import Augmented, as_list, equal_dealings
from support.examples import scaled

SIZE = 60
ALONE = equal_dealings(1, 2)[0]

Stretch = tuple[int, int, int]  # epoch, start, stop


class Whereabouts(Dataset[tuple[int, int]]):
    """Each sample is its index and the process that loaded it."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


class Failing(Whereabouts):
    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 10:
            raise ValueError("this one is broken")
        return super().__getitem__(index)


def taken(feed: Feed, stretch: Stretch, count: int | None = None) -> list[Batch]:
    """The first batches of a stretch, or all."""
    epoch, start, stop = stretch
    batches = feed.batches(Cursor(epoch, start), ALONE, stop)
    try:
        return list(islice(batches, count))
    finally:
        batches.close()


def whole_epoch(epoch: int) -> list[Any]:
    """What stands at which position, loaded in the old way."""
    feed = feed_for(Augmented(SIZE), FeedOptions(batch_size=2, seed=3, collate=as_list))
    return [sample for batch in feed.batches(Cursor(epoch), ALONE) for sample in batch.data]


EPOCHS = [whole_epoch(epoch) for epoch in range(2)]
stretches = some.tuples(some.integers(0, 1), some.integers(0, SIZE - 1), some.integers(1, 20)).map(
    lambda drawn: (drawn[0], drawn[1], min(drawn[1] + drawn[2], SIZE))
)
# A stretch, how many of its batches are taken, after how many something is foreseen, and what.
plans = some.lists(
    some.tuples(stretches, some.integers(0, 12), some.integers(0, 3), stretches | some.none()), max_size=8
)


def follow(feed: Feed, plan: list[tuple[Stretch, int, int, Stretch | None]]) -> None:
    """Whatever is foreseen and whatever is left early, batches are those of their positions."""
    for (epoch, start, stop), count, when, foreseen in plan:
        batches = feed.batches(Cursor(epoch, start), ALONE, stop)
        at = start
        for number, batch in enumerate(batches):
            assert batch.data == EPOCHS[epoch][at : at + len(batch.data)]
            at += len(batch.data)
            assert batch.cursor_after == Cursor(epoch, at)
            if number == when and foreseen is not None:
                feed.foresee(Cursor(foreseen[0], foreseen[1]), ALONE, foreseen[2])
            if number + 1 >= count:
                break
        else:
            assert at == stop
        batches.close()


@settings(max_examples=scaled(200), deadline=None)
@given(plans)
def test_batches_are_those_of_their_positions(plan: list[tuple[Stretch, int, int, Stretch | None]]) -> None:
    feed = feed_for(Augmented(SIZE), FeedOptions(batch_size=2, seed=3, collate=as_list))
    follow(feed, plan)
    feed.close()


def test_so_they_are_with_processes_that_load_ahead() -> None:
    """The same few processes for hundreds of stretches, most of them foreseen wrongly or left early."""
    feed = feed_for(Augmented(SIZE), FeedOptions(batch_size=2, seed=3, collate=as_list, loaders=2))
    before = set(psutil.Process().children())
    used: set[psutil.Process] = set()

    @settings(max_examples=scaled(60), deadline=None, database=None)
    @given(plans)
    def check(plan: list[tuple[Stretch, int, int, Stretch | None]]) -> None:
        follow(feed, plan)
        used.update(set(psutil.Process().children()) - before)

    check()
    assert len(used) == 2
    feed.close()
    assert set(psutil.Process().children()) <= before


def test_the_same_processes_load_one_stretch_after_the_other() -> None:
    feed = feed_for(Whereabouts(), FeedOptions(batch_size=2, loaders=2, shuffle=False, collate=as_list))
    before = set(psutil.Process().children())
    found = []
    for start in range(0, SIZE, 6):
        for batch in taken(feed, (0, start, start + 6)):
            found += batch.data
            if start + 6 < SIZE:
                feed.foresee(Cursor(0, start + 6), ALONE, start + 12)
    assert [index for index, _ in found] == list(range(SIZE))
    assert len({process for _, process in found}) == 2
    assert os.getpid() not in {process for _, process in found}
    feed.close()
    assert set(psutil.Process().children()) <= before


class Recording(Whereabouts):
    """Notes which samples were loaded, in any process."""

    def __init__(self) -> None:
        self.loaded = multiprocessing.get_context("fork").SimpleQueue()

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.loaded.put(index)
        return super().__getitem__(index)

    def all_loaded(self) -> list[int]:
        found = []
        while not self.loaded.empty():
            found.append(self.loaded.get())
        return found


def test_what_is_foreseen_is_loaded_once_and_before_it_is_asked_for() -> None:
    data = Recording()
    feed = feed_for(data, FeedOptions(batch_size=2, loaders=1, shuffle=False, collate=as_list))
    batches = feed.batches(Cursor(), ALONE, 8)
    next(batches)
    feed.foresee(Cursor(0, 8), ALONE, 16)
    assert [batch.data[0][0] for batch in batches] == [2, 4, 6]
    next_ones = feed.batches(Cursor(0, 8), ALONE, 16)
    assert [batch.data[0][0] for batch in next_ones] == [8, 10, 12, 14]
    feed.close()
    assert data.all_loaded() == list(range(16))


def test_entering_in_the_middle_of_what_is_loaded_loads_nothing_twice() -> None:
    data = Recording()
    feed = feed_for(data, FeedOptions(batch_size=2, loaders=1, shuffle=False, collate=as_list))
    assert len(taken(feed, (0, 0, 12), 2)) == 2
    assert len(taken(feed, (0, 4, 20))) == 8
    feed.close()
    assert data.all_loaded() == list(range(20))


class Unloadable(Assembler):
    source, reads_in_sequence = None, False

    def load(self, work: Any) -> Any:
        raise AssertionError(f"{work} was loaded")


def test_works_that_were_passed_are_not_loaded_any_more() -> None:
    numbered = _Numbered(Unloadable(), torch.tensor([5]))
    assert numbered.load((4, "a work")) == (4, None)
    assert numbered.load((-1, None)) == (-1, None)
    with pytest.raises(AssertionError, match="a work was loaded"):
        numbered.load((5, "a work"))


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_sample_that_fails_is_reported_when_it_is_its_turn_and_ends_the_processes(loaders: int) -> None:
    feed = feed_for(Failing(), FeedOptions(batch_size=2, loaders=loaders, shuffle=False, collate=as_list))
    before = set(psutil.Process().children())
    assert len(taken(feed, (0, 0, 10))) == 5
    feed.foresee(Cursor(0, 10), ALONE, 14)  # nobody ever asks for these
    assert len(taken(feed, (0, 14, 20))) == 3
    batches = feed.batches(Cursor(0, 8), ALONE, 12)
    next(batches)
    said = texts.sample_failed(10, "Failing", "ValueError: this one is broken")
    with pytest.raises(DataError, match=re.escape(said)):
        next(batches)
    assert set(psutil.Process().children()) <= before
    assert [batch.data[0][0] for batch in taken(feed, (0, 20, 24))] == [20, 22]  # it can be used again
    feed.close()
    assert set(psutil.Process().children()) <= before


def test_a_killed_process_is_reported() -> None:
    feed = feed_for(Whereabouts(), FeedOptions(batch_size=2, loaders=2, shuffle=False, collate=as_list))
    (first, *_) = taken(feed, (0, 0, 4))
    # torch's handler of SIGCHLD may raise between two batches, which is torch's own error.
    with pytest.raises((DataError, RuntimeError), match=r"killed by signal|exited unexpectedly"):
        os.kill(first.data[0][1], signal.SIGKILL)
        for start in range(4, SIZE, 4):
            taken(feed, (0, start, start + 4))
    feed.close()


def test_epochs_end_the_processes_of_stretches_and_start_their_own() -> None:
    feed = feed_for(Whereabouts(), FeedOptions(batch_size=2, loaders=1, shuffle=False, collate=as_list))
    before = set(psutil.Process().children())
    ((_, process),) = {tuple(sample) for batch in taken(feed, (0, 0, 2)) for sample in batch.data[:1]}
    batches = feed.batches(Cursor(0, 2), ALONE)
    rest = [sample for batch in batches for sample in batch.data]
    assert [index for index, _ in rest] == list(range(2, SIZE))
    assert process not in {process for _, process in rest}
    assert set(psutil.Process().children()) <= before
    feed.close()


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_settings_of_a_loader_hold(context: str) -> None:
    loader = DataLoader(
        list(range(SIZE)),
        batch_size=2,
        num_workers=1,
        prefetch_factor=3,
        multiprocessing_context=context,
        persistent_workers=True,
        collate_fn=as_list,
    )
    feed = feed_for(loader, FeedOptions())
    assert feed.loads_ahead == 3
    for start in (0, 10, 20):
        assert [batch.data for batch in taken(feed, (0, start, start + 4))] == [
            [start, start + 1],
            [start + 2, start + 3],
        ]
    feed.close()
