"""How a server fetches the blocks that a new map gives it: in portions, one at a time from each source. Pure.

A source that never answers is dead: the next map names another. Not here: the bytes (`shard`, `block_state`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PORTION_BYTES = 16 * 1024 * 1024  # of values; a source copies a portion before sending it
PORTION_BLOCKS = 1024  # the time for small blocks depends on their number


@dataclass(frozen=True)
class Portion:
    request: int
    source: int
    blocks: tuple[int, ...]


class Filling:
    """The fetches of one job under one map."""

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
        """What to ask for now; it counts as asked from now on."""
        asked = []
        for source, waiting in self._waiting.items():
            if waiting and source not in self._open:
                self._count += 1
                self._open[source] = Portion(self._count, source, waiting.popleft())
                asked.append(self._open[source])
        return asked

    def asked(self, source: int) -> Portion | None:
        """The portion that this source has not answered yet; ask for it again on a new connection."""
        return self._open.get(source)

    def arrived(self, source: int, request: int, blocks: Sequence[int]) -> bool:
        """Whether these blocks were asked for. A source may lack some of them: those are lost."""
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
