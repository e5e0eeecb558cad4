"""The votes: a short vector that all workers add up once per exchange, in double precision.

It carries what every worker must know before a step counts: the total weight, whether somebody wants to stop or to
save, to regroup or to leave, whether all took the same number of optimizer steps, which buffers changed anywhere, and
from time to time a digest of each worker's replica.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shoal.errors import WorkersDisagree
from shoal.strategies.peers.peers import Peers

DIGEST_LIMIT = 2**40  # digests below it add up exactly in double precision for thousands of workers


@dataclass(frozen=True)
class Agreement:
    """What all workers found out together at one point."""

    stop: str | None = None  # reason, if any worker wants the loops to end
    is_same: bool = True  # all workers have the same `terms`


@dataclass
class Votes:
    """What this worker brings to the next agreement."""

    stop: str | None = None  # reason, where this worker wants all loops to end
    updates: int = 0  # optimizer steps taken since the script began; must be equal everywhere
    stop_seen: bool = False  # an exchange showed that some worker votes for a stop; all workers saw it at that step
    save: bool = False  # this worker wants a checkpoint of the step that is being made
    busy: bool = False  # this worker is still writing the previous checkpoint
    save_seen: bool = False  # in the present step's exchange some worker wanted a checkpoint
    busy_seen: bool = False  # in that exchange some worker was busy
    leaving: bool = False  # this worker has said in the present step's exchange that it hands its place over
    leaving_seen: int = 0  # how many workers have said so
    regroup_seen: bool = False  # some worker knows of somebody who waits to be let in

    def ask_stop(self, reason: str | None) -> None:
        """Set why this worker wants all loops to end; None: it does not."""
        self.stop = reason

    def count_updates(self, more: int) -> None:
        self.updates += more

    def take_updates(self, updates: int) -> None:
        """Go on from the count of the state that this worker has now."""
        self.updates = updates

    def want_save(self, *, save: bool, busy: bool) -> None:
        """Set what this worker brings to the next exchange; forget what earlier exchanges showed."""
        self.save, self.busy = save, busy
        self.forget_save()

    def forget_save(self) -> None:
        """Nobody wants a checkpoint, as far as this worker has seen."""
        self.save_seen = self.busy_seen = False

    def see_own(self, *, stop: bool, leaving: bool, regroup: bool) -> None:
        """A worker that is alone sees its own votes, which no exchange carries."""
        self.stop_seen, self.save_seen, self.busy_seen = stop, self.save, self.busy
        self.leaving, self.leaving_seen, self.regroup_seen = leaving, int(leaving), regroup

    def forget_wishes(self) -> None:
        """Workers are about to meet: the meeting will show who leaves and who waits to be let in."""
        self.leaving_seen, self.regroup_seen = 0, False

    def forget_seen(self) -> None:
        """The members have regrouped: what was seen may be of a worker that is gone, and not all may have seen it."""
        self.stop_seen = self.regroup_seen = self.leaving = False
        self.leaving_seen = 0


@dataclass(frozen=True)
class VoteVector:
    vector: torch.Tensor  # becomes the sum over all workers
    updates: int  # this worker's own
    digest: int  # of what all workers should have in common; 0 where nothing is compared
    slots: int = 0  # at the end of the vector, one per rank: digests of replicas, to find whose differ


@dataclass(frozen=True)
class VoteTotals:
    weight: float
    changed: tuple[bool, ...]
    digests: tuple[int, ...] = ()  # by rank
    is_same: bool = True  # all workers gave the same `digest`


class VoteBoard:
    """Writes this worker's votes and reads the sums."""

    def __init__(self, peers: Peers, votes: Votes) -> None:
        self.peers = peers
        self._votes = votes

    def write(
        self, weight: float, changed: list[bool], digest: int = 0, *, own_digest: int | None = None
    ) -> VoteVector:
        """`digest` should be equal everywhere; `own_digest` is told to all, so that they know whose replica differs."""
        votes, group = self._votes, self.peers.group
        wants_stop = votes.stop is not None or self.peers.stop_wish() is not None
        votes.leaving = self.peers.leave_wish() is not None
        wants_regroup = self.peers.regroup_wish() is not None
        said = map(float, (wants_stop, votes.save, votes.busy, votes.leaving, wants_regroup))
        slots = [0.0] * group.size if own_digest is not None else []
        if own_digest is not None:
            slots[group.rank] = float(own_digest)
        vector = [weight, float(votes.updates), float(digest), *said, *map(float, changed), *slots]
        return VoteVector(torch.tensor(vector, dtype=torch.float64), votes.updates, digest, len(slots))

    def read(self, cast: VoteVector) -> VoteTotals:
        weight, updates, digests, stops, saves, busy, leaving, regroups, *flags = cast.vector.tolist()
        size = self.peers.group.size
        if updates != size * cast.updates:
            raise WorkersDisagree(
                f"worker {self.peers.worker} has taken {cast.updates} optimizer steps and the {size} workers together "
                f"{int(updates)}; every worker must call optimizer.step() in the same iterations"
            )
        self._votes.stop_seen = self._votes.stop_seen or stops > 0
        self._votes.save_seen = self._votes.save_seen or saves > 0
        self._votes.busy_seen = self._votes.busy_seen or busy > 0
        self._votes.leaving_seen = max(self._votes.leaving_seen, int(leaving))
        self._votes.regroup_seen = self._votes.regroup_seen or regroups > 0
        changed = flags[: len(flags) - cast.slots]
        return VoteTotals(
            weight=weight,
            changed=tuple(flag > 0 for flag in changed),
            digests=tuple(int(slot) for slot in flags[len(changed) :]),
            is_same=digests == size * cast.digest,
        )
