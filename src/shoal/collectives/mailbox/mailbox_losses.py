"""What a mailbox says when a message cannot be had: who is gone and how, and which two tensors do not fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.collectives.mailbox.letters import Letter, describe
from shoal.errors import PeerLost, WorkersDisagree
from shoal.transport.ending import Ending, name_the_lost


class Losses:
    """Who has left, and who of them is to be named."""

    def __init__(self, rank: int, names: Mapping[int, str]) -> None:
        self.endings: dict[int, Ending] = {}
        self._rank = rank
        self._names = names
        self._whys: dict[int, str] = {}  # by rank, for people

    def add(self, rank: int, ending: Ending, why: str) -> PeerLost | None:
        """Whose loss fails everything, or None: all who left had finished. `why` is for people and may be empty."""
        self.endings.setdefault(rank, ending)
        self._whys.setdefault(rank, why)
        lost = name_the_lost(self.endings, own=self._rank, awaited=None)
        if lost is None or lost.peer is None or not self._whys.get(lost.peer) or self.endings[lost.peer].announced:
            return lost
        return PeerLost(f"rank {lost.peer} is gone: {self._whys[lost.peer]}", peer=lost.peer)

    def in_operation(self, error: BaseException, label: str) -> BaseException:
        """The same with who it was, where that is known, and in which operation it was noticed."""
        if not isinstance(error, PeerLost):
            return error
        name = None if error.peer is None else self._names.get(error.peer)
        who = f"rank {error.peer} is {name}; " if name else ""
        return PeerLost(f"{error}; {who}noticed in {label}", peer=error.peer)


def needed(rank: int) -> PeerLost:
    return PeerLost(f"rank {rank} left: it had finished, while this rank still needs it", peer=rank)


def mismatch(sent: tuple[int, Letter], received: tuple[int, int, int]) -> WorkersDisagree:
    """`sent`: who, and what it said; `received`: who, dtype and size."""
    source, letter = sent
    target, dtype, size = received
    return WorkersDisagree(
        f"rank {source} sends {describe(letter.dtype, letter.size)} with tag {letter.tag}, and rank {target} "
        f"receives {describe(dtype, size)}: give both tensors the same size and dtype, or the messages other tags"
    )
