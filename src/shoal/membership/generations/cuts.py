"""Which workers cannot reach each other, by their own reports, and which of them stay. Pure.

A worker names all members whose machines do not answer it. One side's report is enough: where packets pass in one
direction only, only one side notices. A member whose machine answers but that did not connect is late; it counts as
late until its own report comes. Not here: when to stop waiting for reports (`forming`), the search (`reach`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.membership.core.roster import Worker
from shoal.membership.generations.reach import connected_set
from shoal.wire.messages import ExchangeBroken

Named = dict[int, tuple[int, ...]]  # by worker: the workers that it names


@dataclass(frozen=True)
class LeftOut:
    """A worker that the others go on without."""

    worker: Worker
    unreached: tuple[int, ...]  # staying workers that this one cannot reach; empty: it was late


@dataclass(frozen=True)
class Cuts:
    unreachable: Named
    late: Named

    @classmethod
    def told(cls, reports: Mapping[int, ExchangeBroken], newcomers: Collection[Worker]) -> Cuts:
        """From the members' reports on their last generation, and from newcomers that wait to be let in."""
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

        Prefer the set with most `holders` of the job's state, so that a newcomer never costs the job one of them; then
        the set with most workers; then the one with most `waiters`, which have reported or are done.
        """
        named = {
            worker: (*self.unreachable.get(worker, ()), *self.late.get(worker, ()))
            for worker in self.unreachable.keys() | self.late.keys()
        }
        return connected_set(candidates, named, (holders, candidates, waiters))

    def name_any(self, workers: Collection[int]) -> bool:
        """Whether any worker names one of these."""
        wanted = frozenset(workers)
        words = (*self.unreachable.values(), *self.late.values())
        return any(not wanted.isdisjoint(others) for others in words)

    def left_out(self, candidates: Collection[Worker], staying: Collection[int]) -> tuple[LeftOut, ...]:
        """Each candidate that does not stay, with the staying workers that it cannot reach."""
        stay = frozenset(staying)
        speakers: dict[tuple[int, ...], set[int]] = {}  # grouped: workers of one machine name the same others
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
