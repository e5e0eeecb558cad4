"""Which workers cannot reach each other, by their own words, and who stays because of it. Pure.

A worker names all members whose machines do not answer it. One side's word is enough: where packets pass in one
direction only, only one side can tell. A member that answers and did not come is late, which is no cut: it counts until
it is heard to have come after all. Not here: when there is nothing more to be heard (`forming`), the search (`reach`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.membership.core.roster import Worker
from shoal.membership.generations.reach import connected_set
from shoal.wire.messages import ExchangeBroken

Named = dict[int, tuple[int, ...]]  # by worker, those that it names


@dataclass(frozen=True)
class LeftOut:
    """A worker that the others go on without."""

    worker: Worker
    unreached: tuple[int, ...]  # of those who go on, the ones that it cannot reach; none: it was late


@dataclass(frozen=True)
class Cuts:
    unreachable: Named
    late: Named

    @classmethod
    def told(cls, reports: Mapping[int, ExchangeBroken], newcomers: Collection[Worker]) -> Cuts:
        """By the members' reports on their last generation, and by those who wait to be let in."""
        unreachable = {worker: report.unreached.unreachable for worker, report in reports.items()}
        unreachable |= {worker.number: worker.unreachable for worker in newcomers}
        late = {
            worker: tuple(other for other in report.unreached.late if other not in reports)
            for worker, report in reports.items()
        }
        return cls(_those_that_name(unreachable), _those_that_name(late))

    def staying(
        self, candidates: Collection[int], holders: Collection[int], waiters: Collection[int]
    ) -> frozenset[int]:
        """The largest set of candidates that all reach each other.

        Those who hold the job's state come first: a newcomer never costs the job one of them. Of several such sets, the
        one stays that has most workers, then most `waiters`: they have reported or are done, and so are known to wait.
        """
        named = {
            worker: (*self.unreachable.get(worker, ()), *self.late.get(worker, ()))
            for worker in self.unreachable.keys() | self.late.keys()
        }
        return connected_set(candidates, named, (holders, candidates, waiters))

    def name_any(self, workers: Collection[int]) -> bool:
        """Whether somebody names one of these."""
        wanted = frozenset(workers)
        words = (*self.unreachable.values(), *self.late.values())
        return any(not wanted.isdisjoint(others) for others in words)

    def left_out(self, candidates: Collection[Worker], staying: Collection[int]) -> tuple[LeftOut, ...]:
        """Each of the candidates that do not stay, with those whom it cannot reach."""
        stay = frozenset(staying)
        speakers: dict[tuple[int, ...], set[int]] = {}  # workers of one machine name the same: few different words
        for speaker, named in self.unreachable.items():
            speakers.setdefault(named, set()).add(speaker)
        words = [(frozenset(who), frozenset(others)) for others, who in speakers.items()]
        found = []
        for worker in candidates:
            if worker.number not in stay:
                unreached = {
                    other
                    for who, others in words
                    for mine, theirs in ((who, others), (others, who))
                    if worker.number in mine
                    for other in theirs & stay
                }
                found.append(LeftOut(worker, tuple(sorted(unreached))))
        return tuple(found)


def _those_that_name(named: Named) -> Named:
    return {worker: others for worker, others in named.items() if others}
