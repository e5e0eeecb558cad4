"""Host memory for GPUs is used again, is never given out twice, and grows by powers of two. No GPU needed."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as some

from shoal.collectives.gpu.pinned_memory import LEAST_BYTES, MOST_BYTES, PinnedMemory, block_bytes


class Registry:
    def __init__(self) -> None:
        self.registered: list[tuple[int, int]] = []

    def __call__(self, address: int, size: int) -> bool:
        self.registered.append((address, size))
        return True


def test_memory_is_free_again_when_the_last_view_of_it_is_gone() -> None:
    registry = Registry()
    pool = PinnedMemory(registry)
    first = pool.take(100_000)
    address = first.data_ptr()
    view = first.view(torch.float32)[10:20]
    del first
    other = pool.take(100_000)
    assert other.data_ptr() != address  # the view still uses it
    del view
    assert pool.take(70_000).data_ptr() == address
    assert [size for _, size in registry.registered] == [131_072, 131_072]
    assert pool.bytes == 262_144


def test_what_was_taken_is_registered() -> None:
    registry = Registry()
    tensor = PinnedMemory(registry).take(5)
    ((address, size),) = registry.registered
    assert address <= tensor.data_ptr() < address + size
    assert (tensor.dtype, len(tensor), size) == (torch.uint8, 5, LEAST_BYTES)


def test_nothing_and_too_much_are_ordinary_memory() -> None:
    registry = Registry()
    pool = PinnedMemory(registry)
    assert len(pool.take(0)) == 0
    assert len(pool.take(MOST_BYTES + 1)) == MOST_BYTES + 1
    assert not registry.registered


@given(some.integers(1, 2**40))
def test_blocks_are_powers_of_two_that_hold_what_is_asked_for(size: int) -> None:
    block = block_bytes(size)
    assert block >= size
    assert block & (block - 1) == 0
    assert block == LEAST_BYTES or block < 2 * size
