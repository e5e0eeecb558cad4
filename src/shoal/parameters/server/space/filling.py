"""How a server comes by blocks that it is to hold under a new map: in portions, one at a time from each source. Pure.

A source that never answers is dead: the next map has another one. Not here: the bytes (`shard`, `block_state`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PORTION_BYTES = 16 * 1024 * 1024  # of values; sources copy a portion before they send it
PORTION_BLOCKS = 1024  # small ones cost time by their number


@dataclass(frozen=True)
class Portion:
    request: int
    source: int
    blocks: tuple[int, ...]


class Filling:
    """Of one job under one map."""

    def __init__(self, fetches: Mapping[int, Sequence[int]], sizes: Mapping[int, int]) -> None:
        """`fetches`: blocks by source; `sizes`: bytes of these blocks."""
        self.size = 0  # bytes of values that came
        self._sizes = sizes
        self._waiting = {source: deque(_portions(blocks, sizes)) for source, blocks in fetches.items()}
        self._open: dict[int, Portion] = {}  # by source
        self._count = 0  # of requests

    @property
    def is_over(self) -> bool:
        return not self._open and not any(self._waiting.values())

    def due(self) -> list[Portion]:
        """What to ask for now; counts as asked from here on."""
        asked = []
        for source, waiting in self._waiting.items():
            if waiting and source not in self._open:
                self._count += 1
                self._open[source] = Portion(self._count, source, waiting.popleft())
                asked.append(self._open[source])
        return asked

    def asked(self, source: int) -> Portion | None:
        """What this source has not answered yet: to be asked again when it is connected anew."""
        return self._open.get(source)

    def arrived(self, source: int, request: int, blocks: Sequence[int]) -> bool:
        """Whether it is what was asked for. A source may not have all of it: what it lacks is lost."""
        portion = self._open.get(source)
        if portion is None or portion.request != request or not set(blocks) <= set(portion.blocks):
            return False
        del self._open[source]
        self.size += sum(self._sizes[block] for block in blocks)
        return True


def _portions(blocks: Sequence[int], sizes: Mapping[int, int]) -> list[tuple[int, ...]]:
    portions: list[list[int]] = []
    room = 0
    for block in blocks:
        if not portions or sizes[block] > room or len(portions[-1]) >= PORTION_BLOCKS:
            portions.append([])
            room = PORTION_BYTES
        portions[-1].append(block)
        room -= sizes[block]
    return [tuple(portion) for portion in portions]
