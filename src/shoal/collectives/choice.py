"""Which program an operation runs: the schedule's name and the tensor's size decide, the same on every rank. Pure."""

from __future__ import annotations

from shoal.collectives import ring, tree
from shoal.collectives.schedule import Action, Program, Round, Transfer
from shoal.errors import UsageError

SCHEDULES = ("auto", "ring", "tree")
# auto: up to here a tree. Median ms of ring / tree, float32 over loopback on two shared cores, one run, November 2026:
#   2 ranks   64 KB 0.43 / 0.40   512 KB 0.59 / 0.57   1 MB 0.73 / 0.76   2 MB 0.94 / 1.21   16 MB 7.5 / 7.1
#   4 ranks   64 KB 1.96 / 0.91   512 KB 2.72 / 1.55   1 MB 4.03 / 2.80   2 MB 7.35 / 5.83   16 MB 75 / 63
# At two ranks they are equal within the noise from 512 KB on; at four the tree was ahead throughout this run. Loopback
# alone would allow a higher limit. It is a judgement, not measured: a tree sends twice the tensor through its root,
# which should cost more on a real link.
TREE_BYTES = 512 * 1024
PIPE_BYTES = 512 * 1024  # about the size of the segments that follow each other through a tree or a chain


class Chooser:
    """One rank's programs under one schedule name."""

    def __init__(self, schedule: str, size: int, rank: int) -> None:
        if schedule not in SCHEDULES:
            raise UsageError(f"there is no schedule {schedule!r}; known are {', '.join(SCHEDULES)}")
        self._schedule = schedule
        self._size = size
        self._rank = rank

    def all_reduce(self, size: int) -> Program:
        """`size` is the tensor's, in bytes."""
        if self._uses_tree(size):
            return tree.tree_all_reduce(self._size, self._rank, segments=_pieces(size))
        return ring.ring_all_reduce(self._size, self._rank)

    def broadcast(self, size: int, source: int) -> Program:
        build = tree.tree_broadcast if self._uses_tree(size) else ring.ring_broadcast
        return build(self._size, self._rank, source=source, segments=_pieces(size))

    def reduce_scatter(self) -> Program:
        return ring.ring_reduce_scatter(self._size, self._rank)

    def all_gather(self) -> Program:
        return ring.ring_all_gather(self._size, self._rank)

    def all_to_all(self) -> Program:
        """Segments 0..size-1 are what this rank gives to each rank, the next `size` what it gets from each."""
        others = [(self._rank + step) % self._size for step in range(1, self._size)]
        sends = tuple(Transfer(Action.SEND, peer, peer, 0) for peer in others)
        receives = tuple(Transfer(Action.COPY, self._size + peer, peer, 0) for peer in reversed(others))
        return Program(2 * self._size, (Round(sends=sends, receives=receives),))

    def send(self, target: int) -> Program:
        return Program(1, (Round(sends=(Transfer(Action.SEND, 0, target, 0),)),))

    def receive(self, source: int) -> Program:
        return Program(1, (Round(receives=(Transfer(Action.COPY, 0, source, 0),)),))

    def _uses_tree(self, size: int) -> bool:
        return self._schedule == "tree" or (self._schedule == "auto" and size <= TREE_BYTES)


def _pieces(size: int) -> int:
    return max(1, -(-size // PIPE_BYTES))
