"""The keyed order of samples: a bijection, different per seed and epoch, and the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.order import ROUNDS, key_of, sample_order, sample_seeds

MASK = 2**64 - 1
seeds = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 1000)

GOLDEN_TEN = [0, 9, 4, 8, 5, 3, 1, 6, 7, 2]
GOLDEN_FAR = [237704224948, 729166493151, 75230424205]
GOLDEN_SEEDS = [4120431234797505006, 2629439441316263565, 14651136372536913810]


def reference_mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def reference_key(*numbers: int) -> int:
    key = 0
    for number in numbers:
        key = reference_mix((key + 0x9E3779B97F4A7C15 + number) & MASK)
    return key


def reference_index(seed: int, epoch: int, size: int, position: int) -> int:
    """The same network written a second time, one position at a time in plain integers."""
    bits = (size - 1).bit_length()
    low = bits - bits // 2
    key = reference_key(1, seed, epoch)
    value = position
    while True:
        left, right = value >> low, value % (1 << low)
        for number in range(ROUNDS):
            round_key = reference_key(key, number)
            if number % 2:
                right ^= reference_mix((left + round_key) & MASK) % (1 << low)
            else:
                left ^= reference_mix((right + round_key) & MASK) % (1 << (bits - low))
        value = left << low | right
        if value < size:
            return value


@settings(deadline=None)
@given(seed=seeds, epoch=epochs, size=st.integers(1, 3000))
def test_every_index_stands_at_one_position(seed: int, epoch: int, size: int) -> None:
    order = sample_order(seed=seed, epoch=epoch, size=size)
    assert sorted(order.between(0, size).tolist()) == list(range(size))


@settings(deadline=None)
@given(seed=seeds, epoch=epochs, size=st.integers(1, 2**40), data=st.data())
def test_ranges_and_single_positions_agree_with_plain_arithmetic(
    seed: int, epoch: int, size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, size - 1))
    stop = min(size, start + data.draw(st.integers(1, 20)))
    order = sample_order(seed=seed, epoch=epoch, size=size)
    found = order.between(start, stop).tolist()
    assert found == [order.index_at(position) for position in range(start, stop)]
    if size > 1:
        assert found[0] == reference_index(seed, epoch, size, start)


@settings(deadline=None)
@given(seed=seeds, epoch=epochs, size=st.integers(200, 10_000))
def test_epochs_and_seeds_differ(seed: int, epoch: int, size: int) -> None:
    first = sample_order(seed=seed, epoch=epoch, size=size).between(0, 200).tolist()
    assert first != sample_order(seed=seed, epoch=epoch + 1, size=size).between(0, 200).tolist()
    assert first != sample_order(seed=seed + 1, epoch=epoch, size=size).between(0, 200).tolist()


def test_order_never_changes_silently() -> None:
    """Checkpoints rely on these values: whoever changes them breaks resuming in mid-epoch."""
    assert sample_order(seed=7, epoch=3, size=10).between(0, 10).tolist() == GOLDEN_TEN
    far = sample_order(seed=2**62, epoch=0, size=10**12)
    assert [far.index_at(position) for position in (0, 1, 10**12 - 1)] == GOLDEN_FAR
    assert sample_seeds(seed=7, epoch=3, indices=np.arange(3)) == GOLDEN_SEEDS


def test_small_orders_are_shuffled_evenly() -> None:
    """Each of 5 samples comes first about equally often: a weak network would favour some."""
    firsts = np.bincount([sample_order(seed=seed, epoch=0, size=5).index_at(0) for seed in range(2000)], minlength=5)
    assert all(320 < count < 480 for count in firsts)


def test_without_shuffle_positions_are_indices() -> None:
    order = sample_order(seed=1, epoch=5, size=100, shuffle=False)
    assert order.between(10, 20).tolist() == list(range(10, 20))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (8, 11)])
def test_positions_outside_are_refused(start: int, stop: int) -> None:
    with pytest.raises(IndexError):
        sample_order(seed=0, epoch=0, size=10).between(start, stop)


def test_keys_depend_on_every_number_and_its_place() -> None:
    assert len({key_of(1, 2), key_of(2, 1), key_of(1, 2, 0), key_of(0, 1, 2), key_of(1, 3)}) == 5
