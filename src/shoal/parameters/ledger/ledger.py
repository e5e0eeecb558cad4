"""A job's ledger: what follows from its entries, in their order. Pure; the same on every server.

Workers propose entries: who is in the generation, loops, leases, pushes, meetings. `apply` takes the next entry and
returns what servers do about it (`effects`).

The rules:

- *A request is answered once.* A repeated request is recognised and gets the same answer. A worker's newer request
  cancels an older one that still waits.
- *Generations.* The first `Enrol` of a newer generation ends the one before: its open pushes are void, and leases of
  workers that are not in the new one are free again. Entries of an older generation, or of a non-member, are void.
- *Pushes.* A push that was staged under another version of the server map is void and must be staged again. An
  asynchronous push is applied at once, if its worker still has the lease of every position that it used. A synchronous
  push waits until every member has pushed for the step; together they make one update. A withdrawn step makes none.
- *Meetings.* `Call` raises the number of meetings. Every request says how many its worker has attended. A request that
  would wait (for a lease, or a pull for slower workers) is answered at once if its worker has not attended all. Answers
  say how many there are, so that each worker comes at the end of its present update. Workers meet outside the ledger,
  agree on the largest number that any of them was told, and have then attended that many. A worker in a meeting holds
  nobody up: a worker that would wait for it has not attended that meeting, so it is released. Enrolling counts as
  attending all meetings called before the generation. Synchronous workers go by the number in `Committed` alone, which
  is the same for all workers of a step.
- *The end.* If applying an entry raises, the ledger ends: nothing is decided from then on. The same entry raises on
  every server, so all servers end the ledger at the same entry, with the same words.

Not here: how entries are numbered and reach all servers (`sequencer`), what may be proposed at all (`proposals`),
gradients (`staging`, `shard`).
"""

from __future__ import annotations

import msgspec

from shoal.parameters.ledger.effects import Begun, Drop, Effect, LedgerEnded, Replace, Reply, Update
from shoal.parameters.ledger.leases import open_leases
from shoal.parameters.ledger.ledger_state import LedgerState, Request
from shoal.parameters.ledger.proposals import objection
from shoal.wire.ledger_entries import (
    AnyAnswer,
    AnyEntry,
    Ask,
    Assign,
    Begin,
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
from shoal.wire.tables import LoopTerms

SYNCHRONOUS = "synchronous"
LONGEST_REASON = 1000  # characters
FEWEST_PIECES, PIECES_PER_WORKER = 1024, 4  # most ranges that a loop's positions may lie in
SHATTERED = "the loop's positions lie in too many pieces already: use up what is leased before leasing more"
MOST_GENERATIONS = 100  # how far behind a worker may be and still learn whether its step was applied


class Ledger(LedgerState):
    """The state after entry `number`, and how the next entry changes it."""

    def apply(self, number: int, entry: AnyEntry) -> list[Effect]:
        """Take the next entry; returns what servers do about it, in order."""
        assert number == self.number + 1, f"entry {number} comes after entry {self.number}"
        self.number = number
        effects: list[Effect] = []
        if self.ended:
            return effects
        try:
            self._take(entry, effects)
        except Exception as error:  # unforeseen: only this job is affected, and every server comes to the same end
            self.ended = _unforeseen(number, entry, error)
            return [LedgerEnded(number, self.ended)]
        return effects

    def _take(self, entry: AnyEntry, effects: list[Effect]) -> None:
        if isinstance(entry, Begin):
            self._begin(entry, effects)
        elif not self.has_seen(entry.worker, entry.request):
            self.requests[entry.worker] = Request(entry.request)
            if any(lease.worker == entry.worker for lease in self.waiting):
                self.waiting = [lease for lease in self.waiting if lease.worker != entry.worker]
            if reason := objection(entry):
                self._void(entry, reason, effects)
            else:
                self._decide(entry, effects)

    # Entries

    def _begin(self, entry: Begin, effects: list[Effect]) -> None:
        self.view = entry.view
        self.origin = self.origin or entry.view
        reason = f"the servers have changed (version {entry.view} of their map): it must be staged again"
        self._void_open(reason, effects, restage=True)
        effects.append(Begun(self.number, entry.view))

    def _decide(self, entry: Proposal, effects: list[Effect]) -> None:
        if isinstance(entry, Enrol):
            self._enrol(entry, effects)
        elif isinstance(entry, Ask):
            self._reply(entry, self._where(entry), effects)
        elif isinstance(entry, Withdraw):
            self._withdraw(entry, effects)
        elif reason := self.strangeness(entry):
            self._void(entry, reason, effects)
        elif isinstance(entry, OpenLoop):
            self._open_loop(entry, effects)
        elif isinstance(entry, Lease):
            self._lease(entry, effects)
        elif isinstance(entry, Call):
            self._call(entry, effects)
        elif isinstance(entry, Push | Assign) and entry.view != self.view:
            self._void(entry, f"staged by version {entry.view} of the server map; now it is {self.view}", effects)
        elif isinstance(entry, Assign):
            self.updates, self.has_values, self.last_step = entry.updates, True, None
            self.base, self.used = entry.updates, 0
            self.leases = None  # positions used for the old values mean nothing for the new: loops are planned anew
            effects.append(Replace(self.number, entry.push, entry.updates))
            self._reply(entry, ProposalDone(request=entry.request, number=self.number), effects)
            self._serve(effects)  # without leases, no request can wait for one
        elif isinstance(entry, Push):
            if self.mode == SYNCHRONOUS:
                self._push_together(entry, effects)
            else:
                self._push_alone(entry, effects)

    def _enrol(self, entry: Enrol, effects: list[Effect]) -> None:
        if entry.generation < self.generation or entry.worker not in entry.workers:
            self._void(entry, self.strangeness(entry) or f"worker {entry.worker} is not among them", effects)
            return
        if entry.generation > self.generation:
            self._start_generation(entry, effects)
        terms = (entry.workers, entry.mode, entry.staleness, entry.scaling)
        if terms != (self.workers, self.mode, self.staleness, self.scaling):
            self._void(entry, f"worker {entry.worker} says other terms of generation {entry.generation}", effects)
            return
        self._reply(entry, ProposalDone(request=entry.request, number=self.number), effects)

    def _start_generation(self, entry: Enrol, effects: list[Effect]) -> None:
        reason = f"generation {entry.generation} has begun"
        self._void_open(reason, effects)
        waiting, self.waiting = self.waiting, []
        for lease in waiting:
            self._void(lease, reason, effects)
        self.generation, self.workers = entry.generation, entry.workers
        self.mode, self.staleness, self.scaling = entry.mode, entry.staleness, entry.scaling
        self.meetings_before, self.withdrawn = self.meetings, None
        self.steps = dict(sorted(self.steps.items())[-MOST_GENERATIONS:])
        self.clocks.enrol(entry.workers)
        if self.leases is not None:
            self.leases.give_back_others(entry.workers)

    def _open_loop(self, entry: OpenLoop, effects: list[Effect]) -> None:
        terms, present = entry.terms, self.leases.terms if self.leases is not None else None
        if present is None or terms.loop > present.loop:
            self.leases = open_leases(terms)
            self._reply(entry, ProposalDone(request=entry.request, number=self.number), effects)
            self._serve(effects)  # requests for positions of the loop before are told that it is over
        elif terms.loop == present.loop and _extent(terms) != _extent(present):
            reason = f"worker {entry.worker} plans {_words(terms)}, others {_words(present)}"
            self._void(entry, reason, effects)
        else:  # planned before, maybe in an earlier generation: used positions stay used
            self._reply(entry, ProposalDone(request=entry.request, number=self.number), effects)

    def _lease(self, entry: Lease, effects: list[Effect]) -> None:
        if self.leases is None or entry.loop > self.leases.terms.loop:
            self._void(entry, f"loop {entry.loop} is not planned", effects)
            return
        if self._shatters(self.leases.growth(entry.worker, keep=entry.holds)):
            self._void(entry, SHATTERED, effects)
            return
        if entry.loop == self.leases.terms.loop:
            self.leases.give_back(entry.worker, entry.holds)
        if entry.worker not in self.leases.held:
            self.clocks.rest(entry.worker)
        self.waiting.append(entry)
        self._serve(effects)

    def _call(self, entry: Call, effects: list[Effect]) -> None:
        if entry.meetings >= self.meetings:
            self.meetings, self.calling = self.meetings + 1, entry.reason
        self._reply(entry, ProposalDone(request=entry.request, number=self.number), effects)
        self._serve(effects)

    def _withdraw(self, entry: Withdraw, effects: list[Effect]) -> None:
        if entry.step <= self.steps.get(entry.generation, -1):
            self._reply(entry, Committed(request=entry.request, number=self.number), effects)
            return
        reason = f"worker {entry.worker} has withdrawn step {entry.step}"
        if entry.generation == self.generation:
            self.withdrawn = max(entry.step, self.withdrawn if self.withdrawn is not None else entry.step)
            if any(push.step <= self.withdrawn for push in self.open_pushes.values()):
                self._void_open(reason, effects)
        self._void(entry, reason, effects)

    def _where(self, entry: Ask) -> Told:
        told, leases = Told(request=entry.request, number=self.number), self.leases
        if leases is None:
            return told
        loop, epoch, position = leases.terms.loop, leases.epoch, leases.position
        return msgspec.structs.replace(
            told, loop=loop, epoch=epoch, position=position, open=leases.open, is_over=leases.is_over
        )

    # Pushes

    def _push_alone(self, entry: Push, effects: list[Effect]) -> None:
        if self.leases is not None and self._shatters(self.leases.growth(entry.worker, use=entry.used)):
            self._void(entry, SHATTERED, effects)
            return
        has_lease = self.leases.use(entry.worker, entry.used) if self.leases is not None else not entry.used
        if not has_lease:
            self._void(entry, f"worker {entry.worker} has no lease of all that its push used", effects)
            return
        self.clocks.tick(entry.worker)
        staleness = max(self.updates - entry.terms.read, 0)
        factor = 1.0 if self.scaling == "none" else 1.0 / (1.0 + staleness)
        self._update([entry], factor, effects)
        self.count(staleness)
        self.used += sum(piece.size for piece in entry.used)
        committed = Committed(
            request=entry.request,
            number=self.number,
            staleness=staleness,
            factor=factor,
            base=self.base,
            used=self.used,
        )
        self._reply(entry, committed, effects)
        self._serve(effects)  # the loop may be over with this push

    def _push_together(self, entry: Push, effects: list[Effect]) -> None:
        steps = {push.step for push in self.open_pushes.values() if push.worker != entry.worker}
        if self.last_step is not None and entry.step <= self.last_step:
            self._void(entry, f"step {entry.step} is applied already", effects)
        elif self.withdrawn is not None and entry.step <= self.withdrawn:
            self._void(entry, f"step {entry.step} was withdrawn", effects)
        elif steps - {entry.step}:
            self._void(entry, f"worker {entry.worker} pushes for step {entry.step}, others for {min(steps)}", effects)
        else:
            if earlier := self.open_pushes.pop(entry.worker, None):
                effects.append(Drop((earlier.push,)))
            self.open_pushes[entry.worker] = entry
            if len(self.open_pushes) == len(self.workers):
                self._apply_step(effects)

    def _apply_step(self, effects: list[Effect]) -> None:
        pushes = [self.open_pushes[worker] for worker in self.workers]
        self.open_pushes = {}
        self.last_step = self.steps[self.generation] = pushes[0].step
        self._update(pushes, 1.0, effects)
        for push in pushes:
            self.clocks.tick(push.worker)
            self.count(0)
            self._reply(push, Committed(request=push.request, number=self.number), effects)

    def _update(self, pushes: list[Push], factor: float, effects: list[Effect]) -> None:
        """A push without any group's values takes part, but its gradients are not used."""
        self.updates += 1
        counted = [push for push in pushes if push.terms.groups]
        left_out = tuple(push.push for push in pushes if not push.terms.groups)
        by = factor if self.scaling == "gradient" else 1.0
        effects.append(
            Update(
                number=self.number,
                pushes=tuple(push.push for push in counted),
                terms=tuple(push.terms for push in counted),
                scales=tuple(push.terms.scale * by for push in counted),
                lr_factor=factor if self.scaling == "lr" else 1.0,
                updates=self.updates,
            )
        )
        if left_out:
            effects.append(Drop(left_out))

    # Leases and answers

    def _serve(self, effects: list[Effect]) -> None:
        """Answer every lease that need not wait."""
        waiting, self.waiting = self.waiting, []
        may_grant = True  # once one request gets nothing, no other does
        for lease in waiting:
            answer, may_grant = self._granted(lease, may_grant=may_grant)
            if answer is None:
                self.waiting.append(lease)
            else:
                self._reply(lease, answer, effects)

    def _granted(self, lease: Lease, *, may_grant: bool) -> tuple[Granted | None, bool]:
        """The answer (None: the request waits), and whether other requests may still be granted something."""
        leases, none = self.leases, Granted(request=lease.request, number=self.number, lease=None)
        if leases is None:  # the values were replaced while the request waited
            return none, may_grant
        if lease.loop < leases.terms.loop or leases.is_over:
            return msgspec.structs.replace(none, is_over=True), may_grant
        if self.meetings > lease.meetings:
            return none, may_grant
        if may_grant and (piece := leases.grant(lease.worker, max(lease.updates, 1), len(self.workers))) is not None:
            self.clocks.work(lease.worker)
            return msgspec.structs.replace(none, lease=piece), True
        # A worker that still has positions must not wait: others may be waiting for its positions.
        return (none if lease.worker in leases.held else None), False

    def _shatters(self, more: int) -> bool:
        """With `more` pieces, there would be too many to go through for every entry."""
        most = FEWEST_PIECES + PIECES_PER_WORKER * len(self.workers)
        return self.leases is not None and more > 0 and self.leases.pieces + more > most

    def _void_open(self, reason: str, effects: list[Effect], *, restage: bool = False) -> None:
        pushes, self.open_pushes = self.open_pushes, {}
        for push in pushes.values():
            self._void(push, reason, effects, restage=restage)

    def _void(self, entry: Proposal, reason: str, effects: list[Effect], *, restage: bool = False) -> None:
        if isinstance(entry, Push | Assign):
            effects.append(Drop((entry.push,)))
            restage = restage or (entry.view != self.view and not self.strangeness(entry))
        void = Void(reason=reason[:LONGEST_REASON], restage=restage, request=entry.request, number=self.number)
        self._reply(entry, void, effects)

    def _reply(self, entry: Proposal, answer: AnyAnswer, effects: list[Effect]) -> None:
        newest = self.requests[entry.worker]
        if newest.number != entry.request:
            return  # the worker has made a newer request meanwhile
        # An enrolling worker has not attended meetings called in this generation; its next answer reports them.
        meetings, calling = (self.meetings_before, "") if isinstance(entry, Enrol) else (self.meetings, self.calling)
        replace = msgspec.structs.replace
        newest.answer = replace(answer, updates=self.updates, meetings=meetings, calling=calling)
        effects.append(Reply(entry.worker, newest.answer))


def _extent(terms: LoopTerms) -> tuple[int, int, int]:
    return terms.first_epoch, terms.epochs, terms.samples


def _words(terms: LoopTerms) -> str:
    return f"loop {terms.loop} of {terms.epochs} epochs from {terms.first_epoch} on, with {terms.samples} samples each"


def _unforeseen(number: int, entry: AnyEntry, error: Exception) -> str:
    whose = "" if isinstance(entry, Begin) else f" of worker {entry.worker}"
    reason = f"entry {number} of its ledger, {type(entry).__name__}{whose}, cannot be applied: {type(error).__name__}"
    return f"{reason}: {error}"[:LONGEST_REASON]
