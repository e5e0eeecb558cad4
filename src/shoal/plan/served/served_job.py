"""A simulated job on parameter servers: its workers, and a coordinator that orders generations and holds meetings.

The coordinator is a stand-in that forms a generation of all running workers; `plan.members` has the live one. Not
here: what must be true at the end (`checks`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shoal.plan.members.invariants import Violation
from shoal.plan.served.mail import Mail
from shoal.plan.served.served_terms import GenerationOrder, ServedTerms
from shoal.plan.served.served_worker import ServedWorker
from shoal.plan.served.simulated_group import SimulatedGroup
from shoal.plan.world.virtual_time import Action, Process

TOGETHER = "a step is applied for all workers or for none"
HEARD = "members of the newest generation are heard"


class ServedJob:
    def __init__(self, group: SimulatedGroup, workers: int, terms: ServedTerms) -> None:
        self.group = group
        self.mail: Mail = group.mail
        self.time = group.time
        self.servers = group.servers
        self.terms = terms
        self.workers: dict[int, ServedWorker] = {}
        self.is_finished = False
        self.end_reason = ""  # why the job stopped before its end; empty: it has not
        self._order: GenerationOrder | None = None
        self._coordinator = Process(self.time)
        self._present: dict[str, dict[int, tuple[int, Callable[[int], None]]]] = {}
        for _ in range(workers):
            self._start()
        self._form()

    @property
    def is_over(self) -> bool:
        return self.is_finished or bool(self.end_reason)

    @property
    def has_ledger(self) -> bool:
        """A worker has enrolled in the servers' present ledger, so the ledger was not begun after the job's end."""
        ledger = self.group.members[0].sequencer.ledger
        return ledger is not None and ledger.origin in {worker.origin for worker in self.workers.values()}

    # Meeting

    def meet(self, worker: ServedWorker, where: str, value: int, tell: Callable[[int], None]) -> None:
        self.mail.send(worker, self._coordinator, lambda: self._arrive(worker, where, value, tell))

    def _arrive(self, worker: ServedWorker, where: str, value: int, tell: Callable[[int], None]) -> None:
        if self._order is None or int(where.split()[1]) != self._order.generation:
            return
        present = self._present.setdefault(where, {})
        present[worker.number] = (value, tell)
        if len(present) < len(self._order.workers):
            return
        del self._present[where]
        old = {value for number, (value, _) in present.items() if not self.workers[number].is_new}
        if where.startswith("enter") and self.terms.mode == "synchronous" and len(old) > 1:
            raise Violation(TOGETHER, f"workers enter a generation at steps {sorted(old)}")
        largest = max(value for value, _ in present.values())
        self.is_finished = self.is_finished or where.startswith("end")
        for number, (_, tell_it) in present.items():
            self._release(self.workers[number], partial(tell_it, largest))

    def _release(self, worker: ServedWorker, tell: Action) -> None:
        def hear() -> None:
            tell()
            worker.go_on()

        self.mail.send(self._coordinator, worker, hear)

    # Failures

    def failed(self, worker: ServedWorker, generation: int, reason: str, *, is_lost: bool) -> None:
        self.mail.send(worker, self._coordinator, lambda: self._hear_failure(generation, reason, is_lost=is_lost))

    def _hear_failure(self, generation: int, reason: str, *, is_lost: bool) -> None:
        """End the job: there is no checkpoint to go on from when the ledger is lost."""
        if is_lost:
            if not self.group.was_killed:
                raise Violation(HEARD, f"a worker takes the ledger for lost: {reason}")
            self.end_reason = self.end_reason or f"all servers were lost, and what they held: {reason}"
        elif self._order is not None and generation == self._order.generation:
            if not self.group.was_killed:
                raise Violation(HEARD, reason)
            self._form()

    # Faults

    def strike(self, *, kill: bool) -> None:
        """Kill a member, which is replaced, or stop it: it is put out, and let in again when it is back."""
        members = [self.workers[number] for number in self._order.workers] if self._order is not None else []
        running = [worker for worker in members if _runs(worker)]
        if self.is_over or self.group.was_killed or sum(worker.knows_ledger for worker in running) < 2:
            return  # one member must stay that knows the job's place and its ledger
        victim = self.time.random.choice(running)
        if kill:
            victim.die()
            self._start()
            self.time.after(self.time.between(0.001, 0.3), self._form)
            return
        back = self.time.between(0.5, 5.0)
        victim.freeze(back)
        self.time.after(1.0, self._form)
        self.time.after(back + self.time.between(0.0, 2.0), self._form)

    def disconnect(self) -> None:
        """A connection of a worker to a server breaks."""
        running = [worker for worker in self.workers.values() if _runs(worker)]
        if running:
            self.time.random.choice(running).lines.break_one()

    def join(self) -> None:
        """One more worker comes."""
        if not self.is_over:
            self._start()
            self._form()

    def _form(self) -> None:
        if self.is_over:
            return
        before = self._order.workers if self._order is not None else ()
        generation = self._order.generation + 1 if self._order is not None else 1
        workers = tuple(number for number, worker in self.workers.items() if _runs(worker))
        self._order = order = GenerationOrder(generation, workers)
        self._present = {}
        for number in workers:
            worker = self.workers[number]
            worker.is_new = worker.is_new or number not in before
            self.mail.send(self._coordinator, worker, partial(worker.hear_order, order))

    def _start(self) -> None:
        number = len(self.workers)
        self.workers[number] = worker = ServedWorker(self, number)
        self.group.watch(worker, worker.lines.hear_map)


def _runs(process: Process) -> bool:
    return process.is_alive and not process.is_frozen
