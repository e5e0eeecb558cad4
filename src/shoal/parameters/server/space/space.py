"""One job on one server: its ledger, its blocks, and the work that ledger entries require on the blocks.

The ledger is ahead of the blocks: entries are recorded and answered at once, and the blocks change later, unit by unit
(`work`). A new version of the map begins at its place among the entries, with a new layout of the blocks; blocks that
this server lacks are fetched while work goes on.

A job that this server cannot continue (`fail`: no room, an entry that cannot be applied, any other exception) is given
up: the server frees what it holds of the job, and tells the job's workers and the keeper why. The keeper ends the job
on all servers. Not here: what workers say (`worker_desk`), connections (`server`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from shoal.errors import ServerRefused, ServerUnfit
from shoal.parameters import texts
from shoal.parameters.blocks.memory_budget import SpaceBudget
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.parameters.ledger.effects import Begun, Drop, LedgerEnded, Replace, Update
from shoal.parameters.ledger.sequencer import AnyRecord, Installed, Instruction, Redirect, SendToServer, SendToWorker
from shoal.parameters.server.space.block_moves import BlockMoves
from shoal.parameters.server.space.job_state import JobState
from shoal.parameters.server.space.site import Site
from shoal.parameters.server.space.worker_desk import Orders, WorkerDesk
from shoal.parameters.server.updates.block_updates import BlockUpdates, pushes_of
from shoal.parameters.server.updates.holding import Holding, HoldingLayout, layout_of
from shoal.parameters.server.updates.update_rules import check_table, whole_bytes
from shoal.values import ServerMap
from shoal.wire import parameter_messages as wire
from shoal.wire.keeper_messages import SpaceEnd, SpaceFailed
from shoal.wire.ledger_entries import AnyEntry
from shoal.wire.parameter_messages import Fetched, LedgerCopy
from shoal.wire.tables import PushId, TableSpec

KEPT_MAPS = 8  # versions; a server hears of every version and begins it soon


class Space:
    def __init__(self, terms: SpaceTerms, site: Site) -> None:
        self.terms = terms
        self.state = JobState(terms.job, site.number)
        self.desk = WorkerDesk(self.state, Orders(self._define, self._propose, self._discard))
        self._site = site
        self._budget = SpaceBudget(site.budget, terms.job, terms.quota, self)
        self._laying: LayingOut | None = None  # the layout that is being made
        self._is_laying_first = False  # `_laying` is the job's first layout; no ledger entry waits for it
        self.applied_updates = 0  # since this server has had the space
        self._refused_tables: dict[bytes, SpaceEnd] = {}  # by digest, only while their workers are being told
        self._maps: dict[int, ServerMap] = {}
        self.updates = BlockUpdates(self.state, site, self.desk)
        self.moves = BlockMoves(self.state, site)
        self._members: tuple[int, ...] = ()  # of the newest generation that was looked at

    @property
    def job(self) -> str:
        return self.terms.job

    @property
    def held_bytes(self) -> int:
        return self.updates.held_bytes + (0 if self.state.holding is None else self.state.holding.held_bytes)

    @property
    def claimed_bytes(self) -> int:
        """Memory that the job holds or has been promised; no other job gets it."""
        return self.updates.held_bytes + (0 if self.state.holding is None else self.state.holding.claimed_bytes)

    @property
    def has_ended(self) -> bool:
        return self.state.end is not None

    @property
    def is_filled(self) -> bool:
        """The newest map has begun here, and this server has all of its blocks that any server has."""
        return self.has_ended or (self.state.is_begun and self.moves.are_over)

    # The table

    def _define(self, table: TableSpec) -> bool:
        """False: this table or another one is being laid out. `ServerRefused`: this server cannot hold the table, or
        other workers have defined a different one."""
        if self.state.table is not None:
            if self.state.table.digest != table.digest:
                raise ServerRefused(texts.another_table(self.job), kind="table")
            return True
        if self._laying is not None:
            return False
        if (refused := self._refused_tables.get(table.digest)) is not None:
            raise ServerRefused(refused.reason, kind=refused.kind)
        assert self.state.map is not None and self.state.is_begun, "workers are heard when the map has begun"
        self._is_laying_first = True
        plan = partial(self._lay_out_first, table, self.state.map)
        self._laying = LayingOut(self._site, table, None, plan, self._make_first)
        return False

    def _lay_out_first(self, table: TableSpec, servers: ServerMap) -> HoldingLayout:
        """In the second thread: check the table, then plan its layout."""
        check_table(table)
        self._check_quota(table, servers)
        return layout_of(table, servers, self._site.number)

    def _make_first(self, plan: HoldingLayout) -> Holding:
        self._budget.check(plan.needed, f"its part of job {self.job}")
        return Holding(plan, self._budget)

    def _check_quota(self, table: TableSpec, servers: ServerMap) -> None:
        needed = whole_bytes(table) * min(servers.replicas, len(servers.servers))
        if self.terms.quota and needed > self.terms.quota:
            reason = texts.over_quota(self.job, needed, servers.replicas, self.terms.quota)
            raise ServerRefused(reason, kind="quota")

    # What other servers say

    def new_map(self, servers: ServerMap) -> None:
        self.state.map = servers
        if self.has_ended:
            return
        self._maps[servers.version] = servers
        for old in [version for version in self._maps if version <= servers.version - KEPT_MAPS]:
            del self._maps[old]
        self.updates.new_map(servers)
        self._carry_out(self.state.sequencer.new_map(servers))

    def connected(self, server: int) -> None:
        """There is a new connection to another server; what was sent on the old one may be lost."""
        if self.has_ended:
            return
        self._carry_out(self.state.sequencer.connected(server))
        self.updates.connected()
        self.moves.connected(server)

    def recorded(self, sender: int, note: AnyRecord, payload: memoryview | None) -> None:
        if self.has_ended:
            return
        if isinstance(note, LedgerCopy) and note.table is not None and self.state.table is None:
            self.state.table = note.table
        self._carry_out(self.state.sequencer.heard(sender, note, bytes(payload or b"")))

    def _propose(self, entry: AnyEntry, view: int) -> None:
        self._carry_out(self.state.sequencer.proposed(entry, view))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, SendToServer):
                self._send(each)
            elif isinstance(each, SendToWorker):
                self._site.crash_at("answer")
                self.desk.answer(each.worker, each.answer)
            elif isinstance(each, Redirect):
                self.desk.redirect(each.worker, each.request)
            elif isinstance(each, Installed):
                self._install(each)
            elif isinstance(each, Drop):
                for push in each.pushes:
                    self.release(push)
            elif isinstance(each, Update | Replace | Begun):
                self.state.queue.add(each)
            elif isinstance(each, LedgerEnded):
                self.fail(SpaceEnd(f"job {self.job} was ended: {each.reason}"))
                return
        if instructions:
            self._forget_the_dead()
            self._advance()

    def _send(self, order: SendToServer) -> None:
        note = order.note
        if isinstance(note, LedgerCopy):
            note = msgspec.structs.replace(note, table=self.state.table)
        if isinstance(note, wire.Recorded):
            self._site.crash_at("recorded")
        self._site.to_server(order.server, note, order.payload or None)
        if isinstance(note, wire.EntryRecord):
            self._site.crash_at("record")

    def _install(self, installed: Installed) -> None:
        if installed.had_one:
            raise ServerUnfit(f"server {self._site.number} has missed entries of job {self.job} and must not go on")
        assert self.state.sequencer.ledger is not None, "it was just installed"
        self.state.queue.clear(self.state.sequencer.ledger.updates)

    def _forget_the_dead(self) -> None:
        """Drop what was staged by workers that have disconnected and left the generation: it will never be applied."""
        ledger, holding = self.state.sequencer.ledger, self.state.holding
        if ledger is None or holding is None or ledger.workers == self._members:
            return
        connected = {line.worker for line in self.desk.lines.values()}
        gone = set(self._members) - set(ledger.workers) - connected
        self._members = ledger.workers
        for push in holding.staging.all():
            if push.worker in gone:
                self._discard(push)

    def _discard(self, push: PushId) -> None:
        """Drop a push that its worker will not propose, unless the ledger has it after all."""
        ledger = self.state.sequencer.ledger
        waiting = () if ledger is None else (entry.push for entry in ledger.open_pushes.values())
        if push not in waiting and not any(
            push in pushes_of(work) for work in self.state.queue if not isinstance(work, Begun)
        ):
            self.release(push)

    # Work on blocks

    @property
    def has_work(self) -> bool:
        if self._laying is not None:
            return self._laying.has_work
        head = self.state.queue.head
        return head is not None and (isinstance(head, Begun) or self.updates.has_work(head))

    def work(self) -> None:
        """Do a little work: one unit."""
        head = self.state.queue.head
        if self._laying is not None:
            self._lay_out(self._laying)
        elif isinstance(head, Begun):
            self._begin(head)
        elif head is not None and (applied := self.updates.work(head)) is not None:
            self.state.queue.finish()
            self.applied_updates += 1
            for push in applied:
                self.release(push)
            self._site.crash_at("applied")
            self._advance()

    def release(self, push: PushId) -> None:
        """Forget a push that has been applied or never will be."""
        if self.state.holding is not None:
            staged = self.state.holding.staging.drop(push)
            self.desk.staging.decided(push, tell=staged is not None and staged.uses_arena)

    # Moving blocks

    def _begin(self, begun: Begun) -> None:
        """All earlier entries are applied: lay out the blocks under the new version, keeping those that are here."""
        servers = self._maps.get(begun.view)
        if self.state.holding is not None:
            for push in self.state.holding.staging.all():
                self.release(push)
        is_here = servers is not None and servers.server(self._site.number) is not None
        if servers is None or not is_here or self.state.table is None:
            self._begun()
        else:
            plan = partial(layout_of, self.state.table, servers, self._site.number)
            make = partial(self._make_next, servers.reason)
            self._laying = LayingOut(self._site, self.state.table, self.state.holding, plan, make)

    def _begun(self) -> None:
        """The map version at the head of the queue has its layout, or needs none."""
        self.state.queue.finish()
        self._site.crash_at("begun")
        self._advance()
        self._site.filled()

    def _make_next(self, reason: str, plan: HoldingLayout) -> Holding:
        """This server's part under a new map. After deaths of other servers, the part may be larger than the room."""
        older = self.state.holding
        if older is None or plan.needed > older.shard.held_bytes:
            what = f"its part of job {self.job} by version {plan.map.version} of the map ({reason})"
            self._budget.check(plan.needed, what)
        return Holding(plan, self._budget, older)

    def _lay_out(self, laying: LayingOut) -> None:
        """Do a little of a new layout."""
        try:
            holding = laying.work()
        except ServerRefused as refusal:
            self._laying = None
            if not self._is_laying_first:
                raise
            self._is_laying_first = False
            # Tell workers that have defined the table why it is refused.
            self._refused_tables = {laying.table.digest: SpaceEnd(str(refusal), refusal.kind)}
            self.desk.look()
            self._refused_tables = {}  # a later definition may find room
            return
        if holding is None:
            return
        self._laying = None
        self.state.table, self.state.holding = holding.table, holding
        self.moves.begin(holding)
        if self._is_laying_first:
            self._is_laying_first = False
            self._advance()
        else:
            self._begun()

    def fetched(self, sender: int, note: Fetched, payload: memoryview | None) -> None:
        self.moves.fetched(sender, note, payload)
        self._advance()

    def _advance(self) -> None:
        """The ledger or the blocks have changed: do what has become possible."""
        if self.moves.advance():
            self._site.filled()
        self.desk.look()

    # The end

    def fail(self, end: SpaceEnd) -> None:
        """This server cannot continue the job, so it ends on all servers. Other jobs go on."""
        if not self.has_ended:
            self._site.to_keeper(SpaceFailed(job=self.job, end=end))
            self.end(end)

    def end(self, end: SpaceEnd) -> None:
        """Free everything of the job, and refuse all requests of its workers."""
        if self.has_ended:
            return
        self.state.end = end
        self._let_go()
        self.state.queue.clear(0)
        self.moves.end()
        self.desk.refuse(ServerRefused(end.reason, kind=end.kind))
        self._site.filled()

    def close(self) -> None:
        self.desk.close()
        self._let_go()

    def _let_go(self) -> None:
        """Free all memory of the job."""
        if self._laying is not None:
            self._laying.cancel()
        self.updates.close()
        if self.state.holding is not None:
            self._site.background.dispose(self.state.holding.close)
        self._laying = self.state.holding = None


Make = Callable[[HoldingLayout], Holding]  # raises `ServerRefused` if there is no room


class LayingOut:
    def __init__(
        self, site: Site, table: TableSpec, older: Holding | None, plan: Callable[[], HoldingLayout], make: Make
    ) -> None:
        """`plan` is called in the second thread. `make` makes the new holding; once that is whole, `older` is freed."""
        self.table = table
        self._site = site
        self._older = older
        self._make = make
        self._coming: Future[HoldingLayout] = site.background.compute(plan)
        self._holding: Holding | None = None

    @property
    def has_work(self) -> bool:
        """False: the plan is still being computed; the server is woken when it is ready."""
        return self._holding is not None or self._coming.done()

    def work(self) -> Holding | None:
        """Do a little; returns the new holding once it is whole. `ServerRefused`: there is no room for it."""
        if self._holding is None:
            self._holding = self._make(self._coming.result())
        if self._holding.take_over():
            return None
        if self._older is not None and self._older.shard is not self._holding.shard:
            self._site.background.dispose(self._older.close)
        return self._holding

    def cancel(self) -> None:
        """Free what has been made of the new holding; the older one remains the caller's."""
        self._coming.cancel()
        if self._holding is not None and (self._older is None or self._older.shard is not self._holding.shard):
            self._site.background.dispose(self._holding.close)
