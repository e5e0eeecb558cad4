"""Who gets which positions of an epoch in which step. Pure: numbers in, ranges of positions out.

A step covers the next workers * batch_size * accumulate positions, fewer at the end of the epoch. `workers` is the
present number of workers, or the full number where the global batch stays the same although some are missing.
Positions are split into `accumulate` micro-batches, and each micro-batch over the ranks, in contiguous pieces. A step
always starts at the cursor and has no gaps, so workers may come and go between any two steps and each position is
dealt out once.
Not here: which sample stands at a position (`order`) and loading it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate as running_sums
from itertools import pairwise

import msgspec

from shoal.data import texts
from shoal.errors import DataError, ShoalError, UsageError


class Dealing(msgspec.Struct, frozen=True):
    """How one worker takes part in the steps of a generation."""

    rank: int
    shares: tuple[int, ...]  # one per rank: relative part of each micro-batch; a rank with 0 gets stand-ins only
    batch_size: int  # samples per worker and micro-batch when no worker is missing; mean over workers
    accumulate: int = 1  # micro-batches per step
    workers: int = 0  # number that a micro-batch is sized for; 0: the present number

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(texts.bad_batch_size(self.batch_size))
        if self.accumulate < 1:
            raise UsageError(texts.bad_accumulate(self.accumulate))
        if not 0 <= self.rank < len(self.shares) or min(self.shares) < 0 or not any(self.shares):
            raise ShoalError(f"rank {self.rank} cannot be dealt samples with shares {self.shares}")

    @property
    def world_size(self) -> int:
        return len(self.shares)

    @property
    def micro_batch(self) -> int:
        """Samples of one full micro-batch over all workers."""
        return (self.workers or self.world_size) * self.batch_size

    @property
    def step_size(self) -> int:
        """Samples of one full step over all workers."""
        return self.micro_batch * self.accumulate


class BatchPart(msgspec.Struct, frozen=True):
    """One worker's part of one micro-batch. All but `start` and `stop` is the same on every rank."""

    start: int  # first position of the epoch
    stop: int  # one past the last; equal to start: no sample, a stand-in is needed
    step_samples: int  # of the whole step over all workers
    position_after: int  # of the epoch, once the step is applied
    is_last: bool  # of the step's micro-batches

    @property
    def samples(self) -> int:
        return self.stop - self.start


def deal_step(dealing: Dealing, *, start: int, samples: int) -> tuple[BatchPart, ...]:
    """This rank's `accumulate` parts of a step that covers `samples` positions from `start`."""
    if not 0 < samples <= dealing.step_size:
        raise ShoalError(f"a step of {samples} samples; this dealing allows 1 to {dealing.step_size}")
    # A short step fills as few micro-batches as possible, evenly, so that one with a single sample is rare.
    used = -(-samples // dealing.micro_batch)
    parts = []
    for number in range(dealing.accumulate):
        first = start + samples * min(number, used) // used
        end = start + samples * min(number + 1, used) // used
        bounds = piece_bounds(dealing.shares, dealing.batch_size, end - first)
        parts.append(
            BatchPart(
                start=first + bounds[dealing.rank],
                stop=first + bounds[dealing.rank + 1],
                step_samples=samples,
                position_after=start + samples,
                is_last=number == dealing.accumulate - 1,
            )
        )
    return tuple(parts)


def deal(dealing: Dealing, *, start: int, stop: int) -> Iterator[BatchPart]:
    """All of this rank's parts of the positions from `start` up to `stop`, step by step."""
    while start < stop:
        samples = min(dealing.step_size, stop - start)
        yield from deal_step(dealing, start=start, samples=samples)
        start += samples


def whole_batches(dealing: Dealing, samples: int) -> int:
    """How many of `samples` remain when an incomplete last micro-batch is dropped."""
    return samples - samples % dealing.micro_batch


def count_steps(dealing: Dealing, samples: int, *, drop_last: bool = False) -> int:
    """The number of steps for `samples` samples."""
    return -(-(whole_batches(dealing, samples) if drop_last else samples) // dealing.step_size)


def check_enough(samples: int, dealing: Dealing) -> None:
    if samples == 0:
        raise DataError(texts.NO_SAMPLES)
    if samples < dealing.world_size:
        raise DataError(texts.too_few_samples(samples, dealing.world_size))


def nothing_left(samples: int, dealing: Dealing) -> DataError:
    workers = dealing.workers or dealing.world_size
    return DataError(texts.nothing_left(samples, workers=workers, batch_size=dealing.batch_size))


@lru_cache(maxsize=64)  # nearly all micro-batches of a generation have the same size
def piece_bounds(shares: tuple[int, ...], batch_size: int, samples: int) -> tuple[int, ...]:
    """Where each rank's piece of a micro-batch begins; rank r has bounds[r] up to bounds[r + 1].

    Pieces of exactly one sample are avoided where the batch size is not 1 itself: BatchNorm refuses to train on them.
    """
    world_size = len(shares)
    if batch_size > 1 and samples < 2 * world_size:
        # Too few for two each: ranks with the largest shares get all samples; of equal shares, the lower rank.
        by_share = sorted(range(world_size), key=lambda rank: (-shares[rank], rank))
        chosen = set(by_share[: max(1, samples // 2)])
        shares = tuple(share if rank in chosen else 0 for rank, share in enumerate(shares))
    total = sum(shares)
    bounds = [samples * below // total for below in running_sums(shares, initial=0)]
    pieces = [stop - start for start, stop in pairwise(bounds)]
    if batch_size > 1:
        _without_singles(pieces)
    return tuple(running_sums(pieces, initial=0))


def _without_singles(pieces: list[int]) -> None:
    """Enlarge pieces of one sample to two, by taking from the largest pieces."""
    for rank, piece in enumerate(pieces):
        if piece == 1:
            largest = max(range(len(pieces)), key=lambda other: (pieces[other], -other))
            if pieces[largest] < 3:
                return
            pieces[largest] -= 1
            pieces[rank] += 1
