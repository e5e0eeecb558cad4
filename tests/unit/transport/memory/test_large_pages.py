"""Shared memory in large pages: the same bytes, for whoever looks at them, for as long as somebody does."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from shoal.transport.memory.arena import Arena, PeerArena
from shoal.transport.memory.large_pages import LARGE_PAGE, Collapse, map_aligned


def shared_file(size: int) -> int:
    descriptor = os.memfd_create("shoal-test", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor


def is_mapped(address: int) -> bool:
    return any(line.startswith(f"{address:x}-") for line in Path("/proc/self/maps").read_text().splitlines())


def test_bytes_stay_what_they_are_and_readers_see_later_ones() -> None:
    size = 3 * LARGE_PAGE + 5
    descriptor = shared_file(size)
    mapped, seen = map_aligned(descriptor, size, writable=True), map_aligned(descriptor, size, writable=False)
    os.close(descriptor)
    places = (0, 1, LARGE_PAGE - 1, LARGE_PAGE, 2 * LARGE_PAGE + 77, size - 1)
    for place in places:
        mapped[place] = place % 251 + 1
    Collapse(mapped, 0, size).wait()
    assert [seen[place] for place in places] == [place % 251 + 1 for place in places]
    mapped[LARGE_PAGE] = 99
    assert seen[LARGE_PAGE] == 99
    assert sum(memoryview(mapped).cast("B")[: LARGE_PAGE - 1]) == 1 + 2  # the rest of it is still zeros


def test_a_mapping_lives_as_long_as_somebody_looks_at_it() -> None:
    descriptor = shared_file(100)
    mapped = map_aligned(descriptor, 100, writable=True)
    os.close(descriptor)
    address = ctypes.addressof(mapped)
    view = memoryview(mapped).cast("B")[10:20]
    del mapped
    view[0] = 7
    assert (view[0], is_mapped(address)) == (7, True)
    view.release()
    del view
    assert not is_mapped(address)


def test_what_cannot_be_mapped_is_said_with_its_size() -> None:
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="100 bytes of shared memory cannot be mapped"):
        map_aligned(reading, 100, writable=True)
    os.close(reading)
    os.close(writing)


def test_an_arena_that_is_closed_meanwhile_leaves_no_thread() -> None:
    arena = Arena.create(16 * LARGE_PAGE)
    arena.use_large_pages(0, arena.size)
    arena.memory[5 * LARGE_PAGE] = 5
    peer = PeerArena.open(arena.offer)
    assert peer is not None
    arena.close()  # threads that are left over fail every test
    arena.close()
    assert peer.memory[5 * LARGE_PAGE] == 5
    peer.close()
