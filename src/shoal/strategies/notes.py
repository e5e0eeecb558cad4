"""The note: a short vector that all workers add up once per exchange, in double precision.

It carries what every worker must know before a step counts: the total weight, whether somebody wants to stop or to
save, whether all took the same number of optimizer steps, and which buffers changed anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shoal.errors import WorkersDisagree
from shoal.strategies.peers import Peers
from shoal.strategies.strategy import Votes

DIGEST_LIMIT = 2**40  # digests below it add up exactly in double precision for thousands of workers


@dataclass(frozen=True)
class Note:
    vector: torch.Tensor  # becomes the sum over all workers
    updates: int  # this worker's own
    digest: int  # of this worker's replica; 0 where replicas are not compared


@dataclass(frozen=True)
class Reading:
    weight: float
    changed: tuple[bool, ...]


class NoteBoard:
    """Writes this worker's notes and reads the sums."""

    def __init__(self, peers: Peers, votes: Votes) -> None:
        self.peers = peers
        self._votes = votes

    def write(self, weight: float, changed: list[bool], digest: int = 0) -> Note:
        wants_stop = self._votes.stop is not None or self.peers.stop_wish() is not None
        updates = self._votes.updates
        votes = map(float, (wants_stop, self._votes.save, self._votes.busy))
        vector = [weight, float(updates), float(digest), *votes, *map(float, changed)]
        return Note(torch.tensor(vector, dtype=torch.float64), updates, digest)

    def read(self, note: Note) -> Reading:
        weight, updates, digests, stops, saves, busy, *flags = note.vector.tolist()
        size = self.peers.group.size
        if updates != size * note.updates:
            raise WorkersDisagree(
                f"worker {self.peers.worker} has taken {note.updates} optimizer steps and the {size} workers together "
                f"{int(updates)}; every worker must call optimizer.step() in the same iterations"
            )
        if digests != size * note.digest:
            raise WorkersDisagree(
                f"the replicas have come apart: worker {self.peers.worker} has other parameters or buffers; "
                "change them through optimizer.step() only, or in the same way on every worker"
            )
        self._votes.stop_seen = self._votes.stop_seen or stops > 0
        self._votes.save_seen = self._votes.save_seen or saves > 0
        self._votes.busy_seen = self._votes.busy_seen or busy > 0
        return Reading(weight=weight, changed=tuple(flag > 0 for flag in flags))
