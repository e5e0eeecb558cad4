"""Loads batches of one stretch of positions after the other with the same processes.

Workers that run free lease short stretches, and starting processes for each stretch would take longer than loading it.
So the processes stay until `close`, and load foreseen stretches ahead. A forecast may be wrong: works are compared with
what is asked for, and batches that nobody asked for are dropped. A batch depends on its work alone, so it does not
matter for which stretch it was loaded. Not here: running the works (`loading`), and which stretches there are
(`map_feed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.data.loading import Assembler, Loader, LoadSettings, guarded_load, unwrapped

PREFETCHED = 2  # torch's default number of batches per process to load ahead
IDLE = (-1, None)  # torch gets this when there is no work: it needs a work for each batch that it returns


@dataclass(frozen=True)
class Planned:
    key: Hashable  # equal keys mean the same batch
    work: Any  # an assembler's


@dataclass
class _Coming:
    planned: Planned
    number: int = -1  # in the order in which the loader got the works; -1: not handed to it yet


class _Numbered(Assembler):
    """Loads numbered works, and skips those that the worker does not want any more."""

    def __init__(self, assembler: Assembler, wanted: torch.Tensor) -> None:
        """`wanted` is in memory that the worker shares with its loader processes."""
        self.source = assembler.source
        self.reads_in_sequence = assembler.reads_in_sequence
        self._assembler = assembler
        self._wanted = wanted

    def load(self, work: tuple[int, Any]) -> tuple[int, Any]:
        number, inner = work
        if inner is None or number < self._wanted.item():
            return number, None
        return number, guarded_load(self._assembler, inner)


class Pipeline:
    """One per feed. Processes start with the first batch that is taken."""

    def __init__(self, assembler: Assembler, settings: LoadSettings) -> None:
        self.depth = settings.processes * (settings.prefetch_factor or PREFETCHED)  # batches that are loaded ahead
        self._wanted = torch.zeros(1, dtype=torch.int64)  # number of the first work that is still wanted
        if settings.processes:
            self._wanted.share_memory_()
        self._loader = Loader(_Numbered(assembler, self._wanted), settings)
        self._loaded: Generator[Any, None, None] | None = None
        self._coming: deque[_Coming] = deque()  # batches asked for and not yet taken, then foreseen ones
        self._handed = 0  # how many of `_coming` the loader has got
        self._asked = 0  # how many of `_coming` were asked for
        self._number = 0  # of the next work that the loader gets

    def expect(self, planned: Sequence[Planned]) -> None:
        """Expect these batches to be taken next; forget batches that were asked for before."""
        self._align(0, planned)
        self._asked = len(planned)

    def foresee(self, planned: Sequence[Planned]) -> None:
        """Load these ahead: they will most likely be asked for after the present ones."""
        self._align(self._asked, planned)

    def take(self) -> Any:
        """The next batch that was asked for."""
        assert self._asked
        head = self._coming[0]
        try:
            if self._loaded is None:
                self._loaded = self._loader.run(self._works())
            number, batch = next(self._loaded)
            while number != head.number:  # a dropped batch, or an idle one
                number, batch = next(self._loaded)
            batch = unwrapped(batch)
        except BaseException:
            self.close()
            raise
        self._coming.popleft()
        self._handed, self._asked = self._handed - 1, self._asked - 1
        self._mark()
        return batch

    def close(self) -> None:
        """End the processes. They start again when something is taken."""
        loaded, self._loaded = self._loaded, None
        self._coming.clear()
        self._handed = self._asked = 0
        if loaded is not None:
            loaded.close()

    def _align(self, at: int, planned: Sequence[Planned]) -> None:
        """Make these the batches to come from index `at` on; if more batches follow these already, keep them."""
        coming = [one.planned.key for one in self._coming]
        same = 0
        while same < len(planned) and coming[at + same : at + same + 1] == [planned[same].key]:
            same += 1
        if same < len(planned):
            while len(self._coming) > at + same:
                self._coming.pop()
            self._coming.extend(_Coming(one) for one in planned[same:])
            self._handed = min(self._handed, at + same)
            self._mark()

    def _mark(self) -> None:
        """Tell the processes which works to skip."""
        self._wanted[0] = self._coming[0].number if self._handed else self._number

    def _works(self) -> Iterator[tuple[int, Any]]:
        while True:
            if self._handed == len(self._coming):
                yield IDLE
                continue
            coming = self._coming[self._handed]
            coming.number, self._number = self._number, self._number + 1
            self._handed += 1
            yield coming.number, coming.planned.work
