"""The order of samples within an epoch, as a pure function of (seed, epoch, position).

A keyed permutation of 0..size-1 with random access and no memory: an alternating Feistel network over the smallest
power of two that holds the size, walked along its cycle until the value falls inside. All arithmetic is 64-bit
integers of our own, so that no release of any library can change an order that a checkpoint relies on. Not here: who
gets which position (`dealing`) and what a sample is (`sources`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

MASK_64 = 2**64 - 1
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: consecutive multiples lie far apart
ROUNDS = 12  # six per half; eight leave visible patterns in domains of three bits
ORDER_KEY = 1  # keys for different uses start from different numbers, so that they are unrelated
SAMPLE_KEY = 2


def mix(values: Numbers) -> Numbers:
    """A bijection of 64-bit numbers in which every input bit moves every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return values ^ (values >> np.uint64(31))


def key_of(*numbers: int) -> int:
    """One 64-bit key from several integers; their order counts."""
    key = 0
    for number in numbers:  # `mix` in plain integers: for a single number that is many times faster than an array
        key = (key + GOLDEN + number) & MASK_64
        key = ((key ^ (key >> 30)) * MULTIPLIERS[0]) & MASK_64
        key = ((key ^ (key >> 27)) * MULTIPLIERS[1]) & MASK_64
        key ^= key >> 31
    return key


def sample_seeds(*, seed: int, epoch: int, indices: Indices) -> list[int]:
    """For each sample the 64-bit seed of its random generators: the same on every worker that may load it."""
    key = np.uint64(key_of(SAMPLE_KEY, seed, epoch))
    seeds: list[int] = mix(indices.astype(np.uint64) * np.uint64(GOLDEN) + key).tolist()
    return seeds


@dataclass(frozen=True)
class SampleOrder:
    """Which index stands at which position of one epoch. Made by `sample_order`."""

    size: int
    round_keys: tuple[np.uint64, ...]  # empty: positions are indices

    def indices(self, positions: Indices) -> Indices:
        """The indices at any positions, in the order asked for."""
        if len(positions) and (positions.min() < 0 or positions.max() >= self.size):
            raise IndexError(f"positions {positions.min()}..{positions.max()} of an order of {self.size}")
        if not self.round_keys:
            return positions.copy()
        values = self._permuted(positions.astype(np.uint64))
        # The walk ends: it returns to its start, which lies inside. Less than half of the domain lies outside.
        outside = np.flatnonzero(values >= self.size)
        while len(outside):
            values[outside] = self._permuted(values[outside])
            outside = outside[values[outside] >= self.size]
        return values.astype(np.int64)

    def between(self, start: int, stop: int) -> Indices:
        return self.indices(np.arange(start, stop, dtype=np.int64))

    def index_at(self, position: int) -> int:
        return int(self.between(position, position + 1)[0])

    def _permuted(self, values: Numbers) -> Numbers:
        bits = (self.size - 1).bit_length()
        left_bits, right_bits = bits // 2, np.uint64(bits - bits // 2)
        left_mask = np.uint64((1 << left_bits) - 1)
        right_mask = np.uint64((1 << int(right_bits)) - 1)
        left, right = values >> right_bits, values & right_mask
        for number, key in enumerate(self.round_keys):
            if number % 2:
                right = right ^ (mix(left + key) & right_mask)
            else:
                left = left ^ (mix(right + key) & left_mask)
        return (left << right_bits) | right


def sample_order(*, seed: int, epoch: int, size: int, shuffle: bool = True) -> SampleOrder:
    """The order of one epoch. Without shuffling, position and index are the same."""
    if not shuffle or size < 2:
        return SampleOrder(size=size, round_keys=())
    key = key_of(ORDER_KEY, seed, epoch)
    return SampleOrder(size=size, round_keys=tuple(np.uint64(key_of(key, number)) for number in range(ROUNDS)))
