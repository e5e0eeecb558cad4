"""How many steps a loop has left, counted against one that is dealt out to its end."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.data.dealing import Dealing, deal, whole_batches
from shoal.data.feed import Batch, Feed
from shoal.data.fingerprint import Fingerprint
from shoal.training.loop.loop_length import LoopLength, LoopPlace
from shoal.training.loop.loop_task import LoopTask
from shoal.values import Cursor
from shoal.wire.tables import Range

BATCH = 4


class Samples(Feed):
    def __init__(self, samples: int | None, *, drop_last: bool = False) -> None:
        self.samples = samples
        self.batch_size = BATCH
        self.drop_last = drop_last

    def batches(self, cursor: Cursor, dealing: Dealing, stop: int | None = None) -> Generator[Batch, None, None]:
        raise AssertionError("a length is known without any batch")

    def fingerprint(self, cursor: Cursor, *, anew: bool = False) -> Fingerprint:
        raise AssertionError("a length is known without any sample")

    def close(self) -> None:
        pass


def dealing(workers: int = 1, accumulate: int = 1) -> Dealing:
    return Dealing(rank=0, shares=(1,) * workers, batch_size=BATCH, accumulate=accumulate)


def plan(feed: Feed, epochs: int = 3, steps: int | None = None, accumulate: int = 1) -> LoopTask:
    return LoopTask(feed, first_epoch=0, epochs=epochs, total_epochs=epochs, accumulate=accumulate, steps=steps)


def steps_of(dealt: Dealing, start: int, stop: int) -> int:
    return sum(part.is_last for part in deal(dealt, start=start, stop=stop))


@given(
    workers=some.integers(1, 3),
    accumulate=some.integers(1, 2),
    samples=some.integers(9, 60),
    place=some.tuples(some.integers(0, 2), some.integers(0, 8)),
    gaps=some.lists(some.tuples(some.integers(0, 4), some.integers(1, 4)), max_size=3),
    drop_last=some.booleans(),
)
def test_the_end_is_where_dealing_out_what_is_left_comes_to(
    workers: int,
    accumulate: int,
    samples: int,
    place: tuple[int, int],
    gaps: list[tuple[int, int]],
    drop_last: bool,
) -> None:
    dealt, (epoch, position) = dealing(workers, accumulate), place
    left = [Range(0, start, start + size) for start, size in gaps]
    expected = 7 + sum(steps_of(dealt, gap.start, gap.stop) for gap in left)
    for number in range(epoch, 3):
        start = position if number == epoch else 0
        kept = whole_batches(dealt, samples - start) if drop_last else samples - start
        expected += steps_of(dealt, start, start + kept)
    length = LoopLength(plan(Samples(samples, drop_last=drop_last), accumulate=accumulate), dealt)
    assert length.end(LoopPlace(2, 7, Cursor(epoch, position), tuple(left))) == expected


def test_a_resumed_loop_whose_workers_ran_free_counts_what_they_had_left_open() -> None:
    """303 updates in all: 84 are applied, three of the positions before the cursor are open."""
    length = LoopLength(plan(Samples(404)), dealing())
    open_ones = (Range(0, 40, 44), Range(0, 60, 68))
    assert length.end(LoopPlace(0, 84, Cursor(0, 348), open_ones)) == 303


def test_a_limit_of_steps_ends_it_first() -> None:
    length = LoopLength(plan(Samples(400), steps=50), dealing())
    assert length.end(LoopPlace(10, 12, Cursor(), (Range(0, 0, 4),))) == 60
    assert length.batches() == 50


def test_a_stream_ends_nobody_knows_when() -> None:
    length = LoopLength(plan(Samples(None)), dealing())
    assert (length.end(LoopPlace(0, 0, Cursor())), length.epochs, length.steps_per_epoch) == (None, 3, None)
    with pytest.raises(TypeError, match="limit the loop with steps="):
        length.batches()
    limited = LoopLength(LoopTask(Samples(None), 0, 1, None, 2, steps=9), dealing())
    assert (limited.end(LoopPlace(1, 1, Cursor())), limited.batches(), limited.epochs) == (10, 18, 1)


def test_epochs_that_a_limit_of_steps_comes_to() -> None:
    assert LoopLength(LoopTask(Samples(40), 0, 1, None, 1, steps=25), dealing()).epochs == 3
