"""What a mailbox needs of a neighbour's process, where that has just ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.collectives.mailbox.neighbour import Doorplate, Neighbour, arena_bytes
from shoal.errors import PeerLost
from shoal.transport.memory.arena import Arena


def open_now() -> int:
    """Descriptors, and arenas that are mapped."""
    return len(list(Path("/proc/self/fd").iterdir())) + Path("/proc/self/maps").read_text().count("memfd:shoal")


def test_a_process_that_ends_between_two_looks_at_it_is_named_and_nothing_stays_open() -> None:
    """Its arena could still be opened, its bell is closed."""
    arena = Arena.create(arena_bytes(2))
    before = open_now()
    with pytest.raises(PeerLost, match=f"rank 3 is gone: process {arena.offer.process} left") as lost:
        Neighbour(3, 1, Doorplate(arena.offer, bell=100_000))
    assert lost.value.peer == 3
    assert open_now() == before
    arena.close()
