"""A worker's side of the parameter servers: pushes, pulls, leases, and everything it asks the job's ledger.

Calls are for the script's thread and block until they are answered; `interrupt` is for any thread. Callers do not
notice when a server dies: the keeper sends the next map, and what was undecided is staged, proposed or asked for again.
Not here: when a worker does what (`strategies`).
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import torch

from shoal.errors import ShoalError
from shoal.parameters.blocks.block_codec import BlockCodec
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.client.client_ask import PullTerms
from shoal.parameters.client.client_core import Activity, ClientCore
from shoal.parameters.client.client_layout import ClientLayout
from shoal.parameters.client.client_memory import StagingMemory
from shoal.parameters.client.client_propose import Defining, Proposing, Wanted, wanted
from shoal.parameters.client.client_pull import IncomingPull, PullMemory
from shoal.parameters.client.client_push import OutgoingPush, OutgoingState, PushStaging
from shoal.parameters.client.client_servers import ClientConfig, MapAdopted, Sent
from shoal.parameters.client.client_state import IncomingState, State, joined, parcels_of
from shoal.values import ServerMap
from shoal.wire.ledger_entries import (
    Answer,
    Ask,
    Assign,
    Call,
    Committed,
    Enrol,
    Granted,
    Lease,
    OpenLoop,
    Proposal,
    ProposalDone,
    Push,
    Told,
    Void,
    Withdraw,
)
from shoal.wire.tables import LoopTerms, PushId, PushTerms, Range, TableSpec

__all__ = ["ClientConfig", "EnrolTerms", "IncomingPull", "MapAdopted", "OutgoingPush", "ParameterClient"]

NEWS_SECONDS = 0.2  # how long to wait for a newer map that a server says exists

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class _Bounded(Activity, Protocol[Result_co]):
    """An activity that comes to a result."""

    @property
    def result(self) -> Result_co | None: ...


@dataclass(frozen=True)
class EnrolTerms:
    """What servers are told of a generation: see `wire.ledger_entries.Enrol`."""

    generation: int
    workers: tuple[int, ...]
    mode: str  # synchronous or asynchronous
    staleness: int | None = None
    scaling: str = "lr"


class ParameterClient:
    def __init__(self, config: ClientConfig) -> None:
        self.attended = 0  # meetings that this worker has attended; counted by the code that holds them
        self._core = ClientCore(config)
        self._worker = config.worker
        self._generation = 0
        self._loop = 0
        self._pushes = 0  # numbers given to pushes so far
        self._push: OutgoingPush | None = None  # the newest
        self._is_proposed = False  # `_push` was proposed and may have been committed
        self._pull: IncomingPull | None = None  # the newest
        self._pulled = PullMemory()
        _open_clients.add(self)
        self._core.thread.start()
        self._core.thread.do(self._core.lines.start)

    # The job's table

    @property
    def held(self) -> tuple[int, int]:
        """Blocks of this job's parameters that servers hold, and their bytes."""
        blocks = () if self._core.table is None else blocks_of(self._core.table)
        return len(blocks), sum(block.size for block in blocks)

    def define(self, table: TableSpec, codec: BlockCodec | None = None) -> bool:
        """Connect to all servers, tell them the table. `codec`: for servers on other machines. True: it has values."""
        core = self._core
        servers = core.wait_for(lambda: core.lines.map)
        with core.thread.changed:
            core.codec = codec
            if core.table is None:
                core.memory = StagingMemory(table, servers.replicas)
                core.table = table
                assert core.lines.map is not None
                core.layout = ClientLayout(table, core.lines.map)
                core.thread.do(partial(core.lines.serve, table, core.memory.offer))
            elif core.table.digest != table.digest:
                raise ShoalError("the table was defined before, and it was another one")
        core.wait_for(lambda: core.lines.is_whole or None)
        self._begin_anew()
        return self._run(Defining(core, table))

    def await_map(self) -> ServerMap:
        """Wait for the first map; returns the newest one."""
        return self._core.wait_for(lambda: self._core.lines.map)

    @property
    def server_map(self) -> ServerMap | None:
        """The newest that is known here."""
        with self._core.thread.changed:
            return self._core.lines.map

    @property
    def origin(self) -> int | None:
        """Version of the map that the servers' ledger began with; None: no server has told it yet."""
        with self._core.thread.changed:
            return self._core.lineage.origin

    @property
    def sent(self) -> Sent:
        with self._core.thread.changed:
            return self._core.lines.sent

    # The ledger

    def enrol(self, terms: EnrolTerms) -> ProposalDone:
        self._begin_anew()
        entry = Enrol(
            worker=self._worker,
            request=0,
            generation=terms.generation,
            workers=terms.workers,
            mode=terms.mode,
            staleness=terms.staleness,
            scaling=terms.scaling,
        )
        done = self._get(ProposalDone, entry)
        self._generation = terms.generation
        return done

    def open_loop(self, terms: LoopTerms) -> None:
        self._get(ProposalDone, OpenLoop(worker=self._worker, request=0, generation=self._generation, terms=terms))
        self._loop = terms.loop

    def lease(self, updates: int, holds: Sequence[Range] = ()) -> Granted:
        """Positions of the planned loop. `holds`: what will still be used of earlier leases; the rest is returned."""
        entry = Lease(
            worker=self._worker,
            request=0,
            generation=self._generation,
            updates=updates,
            loop=self._loop,
            meetings=self.attended,
            holds=tuple(holds),
        )
        return self._get(Granted, entry)

    def call(self, reason: str) -> ProposalDone:
        """Call all workers to a meeting."""
        entry = Call(worker=self._worker, request=0, generation=self._generation, reason=reason, meetings=self.attended)
        return self._get(ProposalDone, entry)

    def ask(self) -> Told:
        """How far the loop is."""
        return self._get(Told, Ask(worker=self._worker, request=0))

    def withdraw(self, step: int) -> Committed | Void:
        """Was this step's push applied? If not, it never will be."""
        entry = Withdraw(worker=self._worker, request=0, generation=self._generation, step=step)
        answer = self._propose(entry)
        assert isinstance(answer, Committed | Void)
        self._end_push(is_void=isinstance(answer, Void))
        return answer

    # Pushes

    def begin_push(self) -> OutgoingPush:
        """Begin a new push; an earlier one that was never committed is given up."""
        self._end_push(is_void=not self._is_proposed)
        self._push = self._core.wait_for(self._make_push)
        self._is_proposed = False
        with self._core.thread.changed:
            self._core.begin(self._push)
        return self._push

    def commit(
        self, push: OutgoingPush, terms: PushTerms, *, step: int = 0, used: Sequence[Range] = ()
    ) -> Committed | Void:
        """Propose the push, and return once it is decided whether it is applied."""
        assert push is self._push, "the push that was begun last is committed"
        push.put_zeros()
        while True:
            push = self._await_staged(push)
            entry = Push(
                worker=self._worker,
                request=0,
                generation=self._generation,
                view=push.layout.version,
                push=push.id,
                terms=terms,
                step=step,
                used=tuple(used),
            )
            self._is_proposed = True
            answer = self._propose(entry)
            assert isinstance(answer, Committed | Void), answer
            if not (isinstance(answer, Void) and answer.restage):
                self._end_push(is_void=isinstance(answer, Void))
                return answer
            self._is_proposed = False
            self._newer_layout(push.layout)
            push = self._lay_out_anew(push)

    def assign(self, tensors: Mapping[str, torch.Tensor], states: Mapping[str, State] | None, updates: int) -> int:
        """Replace all values and the optimizers' state (None: fresh). Returns the number of the entry that did it."""
        layout = self._core.wait_for(lambda: self._core.layout)
        while True:
            number = self._next_push()
            staging = OutgoingState(self._core, layout, number, parcels_of(layout, tensors, states))
            if not self._stage(staging):
                layout = self._newer_layout(layout)
                continue
            entry = Assign(
                worker=self._worker,
                request=0,
                generation=self._generation,
                view=layout.version,
                push=number,
                updates=updates,
            )
            answer = self._propose(entry)
            if not (isinstance(answer, Void) and answer.restage):
                return wanted(ProposalDone, entry, answer).number
            layout = self._newer_layout(layout)

    # Values

    def pull(self, at_least: int, order: Sequence[str], *, is_bounded: bool = True) -> IncomingPull:
        """Ask for all values, those of `order` first, that include entry `at_least`. Closes the earlier pull."""
        layout = self._core.wait_for(lambda: self._core.layout)
        if self._pull is not None:
            self._pull.close()
        names = tuple(dict.fromkeys((*order, *layout.names)))
        terms = PullTerms(at_least=at_least, order=names, is_bounded=is_bounded, meetings=self.attended)
        with self._core.thread.changed:
            self._pulled.tidy({line.arena for line in self._core.lines.lines.values()})
            self._pull = IncomingPull(self._core, self._pulled, terms)
            self._core.begin(self._pull)
        return self._pull

    def read_state(self, at_least: int) -> dict[str, dict[str, torch.Tensor]]:
        """Everything that servers hold, by tensor: "" is its value, the rest is its optimizer's state."""
        layout = self._core.wait_for(lambda: self._core.layout)
        terms = PullTerms(at_least=at_least, order=tuple(layout.names), is_bounded=False, with_state=True)
        return joined(layout, self._run(IncomingState(self._core, terms)))

    # Its life

    def interrupt(self, reason: str) -> None:
        """From any thread: a call that blocks raises `Aborted`, and so does every call until `resume`."""
        self._core.interrupt(reason)

    def resume(self) -> None:
        self._core.resume()

    def close(self) -> None:
        """Safe to call twice."""
        _open_clients.discard(self)
        if self._pull is not None:
            self._pull.close()
        self._core.close()
        self._pulled.tidy(set())

    def close_in_child(self) -> None:
        """After a fork: the connections are the parent's, and must not stay open in the child."""
        for connection in self._core.lines.connections:
            connection.endpoint.close()

    # Pieces of the above

    def _begin_anew(self) -> None:
        """From now on this worker uses the ledger that servers have now."""
        with self._core.thread.changed:
            self._core.lineage.begin_anew()

    def _get(self, kind: type[Wanted], entry: Proposal) -> Wanted:
        return wanted(kind, entry, self._propose(entry))

    def _propose(self, entry: Proposal) -> Answer:
        """Propose an entry to the home server, again after every change of home, until it is answered."""
        return self._run(Proposing(self._core, entry))

    def _run(self, activity: _Bounded[Result]) -> Result:
        """Run the activity until it has a result."""
        core = self._core
        with core.thread.changed:
            core.begin(activity)
        try:
            return core.wait_for(lambda: activity.result, activity)
        finally:
            with core.thread.changed:
                core.end(activity)

    def _next_push(self) -> PushId:
        self._pushes += 1
        return PushId(self._worker, self._pushes)

    def _make_push(self, *, is_urgent: bool = False) -> OutgoingPush | None:
        """None while there is no free memory, or no map. The lock is held."""
        core = self._core
        if core.layout is None or core.memory is None:
            return None
        number = self._next_push()
        slot = core.memory.take(number, core.layout, is_urgent=is_urgent)
        return None if slot is None else OutgoingPush(core, core.layout, number, slot)

    def _await_staged(self, push: OutgoingPush) -> OutgoingPush:
        """Wait until the push is staged everywhere; lay it out anew whenever the map changes."""
        while not self._core.wait_for(partial(_outcome, push), push):
            push = self._lay_out_anew(push)
        return push

    def _lay_out_anew(self, push: OutgoingPush) -> OutgoingPush:
        other = self._core.wait_for(lambda: self._make_push(is_urgent=True))
        push.copy_into(other)
        with self._core.thread.changed:
            push.over(is_void=True)
            self._push = other
            self._core.begin(other)
        return other

    def _stage(self, staging: PushStaging) -> bool:
        """False: the map has changed."""
        with self._core.thread.changed:
            self._core.begin(staging)
        try:
            return self._core.wait_for(partial(_outcome, staging), staging)
        finally:
            with self._core.thread.changed:
                self._core.end(staging)

    def _newer_layout(self, layout: ClientLayout) -> ClientLayout:
        """Wait for the newer layout that a server says exists; after `NEWS_SECONDS` return the same one."""
        until = time.monotonic() + NEWS_SECONDS

        def look() -> ClientLayout | None:
            newest = self._core.layout
            return newest if newest is not layout or time.monotonic() > until else None

        return self._core.wait_for(look)

    def _end_push(self, *, is_void: bool) -> None:
        push, self._push = self._push, None
        if push is not None:
            with self._core.thread.changed:
                push.over(is_void=is_void)
                if not self._is_proposed:
                    self._core.thread.do(push.discard)


def _outcome(staging: PushStaging) -> bool | None:
    """True: staged everywhere; False: the map has changed; None: neither yet."""
    return False if not staging.is_current else staging.is_staged or None


_open_clients: weakref.WeakSet[ParameterClient] = weakref.WeakSet()


def _close_in_child() -> None:
    for client in tuple(_open_clients):
        client.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
