"""Drives a worker's way into the next generation (`membership.member`) with real peers, and copies the state.

Nothing of the session changes here: what was received is handed back, for `recovery` to load. After a failure on the
way it starts over with the next generation; only the end of the job ends it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import torch

from shoal.checkpoint.peer_copy import copy_state
from shoal.checkpoint.state_tree import Tree
from shoal.collectives.group import Group
from shoal.errors import ExchangeFailed
from shoal.events import Advised, ReplicaDiffered, StateCopied
from shoal.membership.member import member
from shoal.membership.member.alignment import Alignment, Taking
from shoal.strategies.peers.peers import Peers
from shoal.training import texts
from shoal.values import Standing
from shoal.wire.messages import Done, ExchangeBroken, Ready


@dataclass(frozen=True)
class Regrouped:
    """This worker is in a new generation, and knows what it has to take."""

    taking: Taking
    alignment: Alignment
    payload: Tree | None  # what was copied; None on those who needed nothing
    reason: str  # why the generation was formed
    was_hopeless: bool = False  # on the way, parameters differed and no majority was right


class State(Protocol):
    """Makes the state that others copy. `goes_back`: as it was at the end of this worker's last loop."""

    def __call__(self, *, goes_back: bool) -> Tree: ...


class Regrouping:
    """Brings this worker into one generation, through as many as break on the way."""

    def __init__(self, peers: Peers, state: State | None = None) -> None:
        """`state` is asked for where this worker is one that others copy from; None: it has nothing to give."""
        self._peers = peers
        self._state = state
        self._payload: Tree | None = None
        self._was_hopeless = False
        self._loss: ExchangeBroken | None = None  # servers have lost the job's state, as this worker found
        self._standings: tuple[Standing, ...] = ()  # of all members, as last compared

    def run(self, notice: Ready | ExchangeBroken, standing: Standing) -> Regrouped:
        """Raises JobOver where the job ends meanwhile."""
        if isinstance(notice, ExchangeBroken) and notice.must_restore:
            self._loss = notice
            standing = msgspec.structs.replace(standing, saw_loss=True)
        regrouped = self._go(member.regroup(self._peers.worker, notice, standing), standing)
        assert regrouped is not None
        return regrouped

    def finish(self, notice: Done, standing: Standing) -> Regrouped | None:
        """This worker's script is done; None where it may go. Raises JobOver where the job ends meanwhile."""
        return self._go(member.regroup(self._peers.worker, notice, standing), standing)

    def _go(self, way: Generator[member.Effect, Any, member.Entered | None], standing: Standing) -> Regrouped | None:
        answer: Any = None
        failure: ExchangeFailed | None = None
        while True:
            try:
                effect = way.send(answer) if failure is None else way.throw(failure)
            except StopIteration as done:
                entered: member.Entered | None = done.value
                if entered is None:
                    return None
                self._peers.is_new = False
                taking = entered.alignment.takings[self._peers.group.rank]
                self._tell_differing(entered.alignment, standing.step)
                self._tell_loss()
                return Regrouped(
                    taking, entered.alignment, self._payload, entered.generation.reason, self._was_hopeless
                )
            failure = None
            try:
                answer = self._do(effect)
            except ExchangeFailed as broken:
                failure = broken

    def _do(self, effect: member.Effect) -> Any:
        match effect:
            case member.Look():
                return self._peers.unreached()
            case member.Tell():
                self._tell_hopeless(effect.notice)
                self._peers.leave_group(getattr(effect.notice, "reason", "waiting to be let in"))
                self._peers.tell(effect.notice)
            case member.Await():
                return self._peers.await_generation(effect.after)
            case member.Finish():
                return self._peers.finish(effect.notice)
            case member.Connect():
                self._peers.connect(effect.generation)
            case member.Compare():
                self._standings = _compare(effect.standing, self._peers.group)
                return self._standings
            case member.Copy():
                self._copy(effect.alignment)
        return None

    def _copy(self, alignment: Alignment) -> None:
        assert alignment.source is not None
        started, group = time.perf_counter(), self._peers.group
        givers = [alignment.source, *(rank for rank in alignment.givers if rank != alignment.source)]
        receivers = [rank for rank, taking in enumerate(alignment.takings) if taking is not Taking.KEEP]
        own = None
        if group.rank in givers:
            own = {} if self._state is None else self._state(goes_back=bool(alignment.missed))
        copied = copy_state(own, givers=givers, receivers=receivers, group=group)
        if copied is None:
            return
        self._payload = copied.state
        self._peers.report(
            StateCopied(
                worker=self._peers.worker,
                source=self._peers.generation.members[alignment.source].worker,
                step=copied.state["step"],
                size=copied.size,
                seconds=time.perf_counter() - started,
                reason=alignment.takings[group.rank].value,
            )
        )

    def _tell_hopeless(self, notice: Ready | ExchangeBroken) -> None:
        if not isinstance(notice, ExchangeBroken) or not notice.must_restore or self._loss is not None:
            return
        self._was_hopeless = True
        if self._peers.group.rank == 0:
            text = "parameters differ and no majority tells which are right; the newest checkpoint is restored"
            self._peers.report(ReplicaDiffered(worker=None, step=notice.step, reason=text))

    def _tell_loss(self) -> None:
        """The first of those that found it reports it for all: others may only have heard that a peer gave up."""
        if self._loss is None or [one.saw_loss for one in self._standings].index(True) != self._peers.group.rank:
            return
        text = texts.updates_lost(self._loss.step, self._loss.reason)
        self._peers.report(Advised(worker=self._peers.worker, text=text))

    def _tell_differing(self, alignment: Alignment, step: int) -> None:
        if self._peers.group.rank != 0:
            return
        members = self._peers.generation.members
        for rank in alignment.differing:
            worker = members[rank].worker
            text = (
                f"worker {worker} had other parameters than the {len(alignment.givers)} workers that agree with each "
                "other; it was given theirs"
            )
            self._peers.report(ReplicaDiffered(worker=worker, step=step, reason=text))


def _compare(standing: Standing, group: Group) -> tuple[Standing, ...]:
    """All members' standings, by rank: each fills its own row of a table, and the tables are added up."""
    numbers = torch.zeros(group.size, len(Standing.__struct_fields__), dtype=torch.int64)
    own = [int(getattr(standing, field)) for field in Standing.__struct_fields__]
    numbers[group.rank] = torch.tensor(own, dtype=torch.int64)
    group.all_reduce(numbers, label="where the members are").wait()
    rows = (dict(zip(Standing.__struct_fields__, row, strict=True)) for row in numbers.tolist())
    return tuple(msgspec.convert(row, Standing, strict=False) for row in rows)
