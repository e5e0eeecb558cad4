"""Leases: which worker has which positions of a loop, so that each is used exactly once. Pure.

Every position is free, held by one worker, or used. Free positions are leased in order, returned ones first, in pieces
within one epoch; when a push commits, the positions that it used are used for good. Epochs follow each other without a
barrier. Pieces get smaller towards the end of the loop, so that all workers end at about the same time.

Not here: which requests for a lease wait, and until when (`ledger`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.bounds import ByNumber, Count, ItemList, Total
from shoal.parameters.ledger.ranges import common, merged, total, without
from shoal.wire.tables import LoopTerms, Range


class Leases(msgspec.Struct):
    """The positions of one loop."""

    terms: LoopTerms
    epoch: Total  # of the first position that was never leased
    position: Count  # of the same
    returned: ItemList[Range] = msgspec.field(default_factory=list)  # free again, in order
    returned_size: Total = 0  # positions in `returned`
    held: ByNumber[ItemList[Range]] = msgspec.field(default_factory=dict)  # by worker, in order; never empty
    commits: Total = 0  # updates since the loop was planned

    @property
    def free(self) -> int:
        """Positions that may be leased."""
        fresh = (self.end - self.epoch) * self.terms.samples - self.position if self.epoch < self.end else 0
        return fresh + self.returned_size

    @property
    def is_over(self) -> bool:
        """Every position is used, or as many updates were made as `terms.updates` allows."""
        if self.terms.updates is not None and self.commits >= self.terms.updates:
            return True
        return not self.held and self.free == 0

    def grant(self, worker: int, updates: int, members: int) -> Range | None:
        """Lease positions for at most `updates` updates to the worker; None: there are none."""
        piece = self._next(min(updates, self._share(members), self._updates_left))
        if piece is not None:
            self.held[worker] = merged((*self.held.get(worker, ()), piece))
        return piece

    def give_back(self, worker: int, keep: Sequence[Range] = ()) -> None:
        """Free what the worker holds, except `keep`."""
        held = self.held.pop(worker, [])
        kept = common(held, keep)
        self._free_again(without(held, kept))
        if kept:
            self.held[worker] = kept

    def give_back_others(self, workers: Iterable[int]) -> None:
        """Free what all other workers hold."""
        gone = self.held.keys() - set(workers)
        self._free_again([piece for worker in gone for piece in self.held.pop(worker)])

    def use(self, worker: int, ranges: Sequence[Range]) -> bool:
        """A push that used these positions commits. False: the worker does not hold all of them; nothing changes."""
        held = self.held.get(worker, [])
        if without(ranges, held) or total(merged(ranges)) != sum(piece.size for piece in ranges):
            return False  # another worker's, used already, or twice in one push
        left = without(held, ranges)
        self.held.pop(worker, None)
        if left:
            self.held[worker] = left
        self.commits += 1
        return True

    @property
    def pieces(self) -> int:
        """Number of ranges of positions that were leased and not used; the time of all operations depends on it."""
        return len(self.returned) + sum(len(pieces) for pieces in self.held.values())

    def growth(self, worker: int, *, use: Sequence[Range] = (), keep: Sequence[Range] | None = None) -> int:
        """How many more pieces the worker would hold if it used `use`, or if it kept only `keep`."""
        held = self.held.get(worker, [])
        left = without(held, use) if keep is None else common(held, keep)
        return len(left) - len(held)

    @property
    def open(self) -> tuple[Range, ...]:
        """Positions that were leased and are not used: held, or given back."""
        return tuple(merged((*self.returned, *(piece for pieces in self.held.values() for piece in pieces))))

    @property
    def end(self) -> int:
        """The first epoch after this loop."""
        return self.terms.first_epoch + self.terms.epochs

    @property
    def _updates_left(self) -> int:
        """Updates that may still be leased; `terms.updates` limits those made and those held together."""
        if self.terms.updates is None:
            return self.free  # an update has at least one position
        held = sum(-(-piece.size // self.terms.update) for pieces in self.held.values() for piece in pieces)
        return max(self.terms.updates - self.commits - held, 0)

    def _free_again(self, pieces: Sequence[Range]) -> None:
        if pieces:
            self.returned = merged((*self.returned, *pieces))
            self.returned_size = total(self.returned)

    def _share(self, members: int) -> int:
        """Updates of one lease: half of an equal share of what is free, so that no worker has much left at the end."""
        return max(self.free // (2 * max(members, 1) * self.terms.update), 1)

    def _next(self, updates: int) -> Range | None:
        """Take free positions for so many updates, all from one range."""
        size = updates * self.terms.update
        if size <= 0 or self.free == 0:
            return None
        if self.returned:
            first, *rest = self.returned
            piece = Range(first.epoch, first.start, min(first.start + size, first.stop))
            self.returned = [*without([first], [piece]), *rest]
            self.returned_size -= piece.size
            return piece
        piece = Range(self.epoch, self.position, min(self.position + size, self.terms.samples))
        self.position = piece.stop
        if self.position == self.terms.samples:
            self.epoch, self.position = self.epoch + 1, 0
        return piece


def open_leases(terms: LoopTerms) -> Leases:
    """A loop's positions at its beginning: all free but those that `terms` names as used.

    The time depends on the number of epochs from `used_before` to the last one in `done`, which `proposals` limits.
    """
    leases = Leases(terms, epoch=terms.first_epoch, position=0)
    leases.epoch = min(max(terms.first_epoch, terms.used_before), leases.end)
    end = max((piece.epoch for piece in terms.done), default=-1) + 1
    whole = [Range(epoch, 0, terms.samples) for epoch in range(leases.epoch, min(end, leases.end))]
    done = common(terms.done, whole)
    if done:
        leases.epoch, leases.position = done[-1].epoch, done[-1].stop
        before = [piece for piece in whole if piece.epoch < leases.epoch]
        leases.returned = without([*before, Range(leases.epoch, 0, leases.position)], done)
        leases.returned_size = total(leases.returned)
        if leases.position == terms.samples:
            leases.epoch, leases.position = leases.epoch + 1, 0
    return leases
