"""The coordinator of simulated workers: it orders generations, is where they meet, and strikes them.

Workers themselves are in `simulated_workers`, servers in `simulated_servers`.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.parameters.ledger.sequencer import Answer
from shoal.values import ServerMap
from support.simulated_servers import Network, Node, SimulatedGroup, SimulatedServer
from support.simulated_workers import Order, SimulatedWorker, Terms


class SimulatedJob:
    """The coordinator: it orders generations, and is where workers meet."""

    def __init__(self, group: SimulatedGroup, workers: int, terms: Terms) -> None:
        self.network: Network = group.network
        self.group = group
        self.terms = terms
        self.workers: dict[int, SimulatedWorker] = {}
        self.order: Order | None = None
        self.is_over = False
        self._self = Node(group.network, -2)
        self._present: dict[str, dict[int, tuple[int, Callable[[int], None]]]] = {}
        group.listeners.append(self._spread_map)
        group.on_answer.append(self._answer)
        for _ in range(workers):
            self._start()
        self._form()

    def meet(self, worker: SimulatedWorker, where: str, value: int, tell: Callable[[int], None]) -> None:
        self.network.send(worker, self._self, lambda: self._arrive(worker, where, value, tell))

    def _arrive(self, worker: SimulatedWorker, where: str, value: int, tell: Callable[[int], None]) -> None:
        if self.order is None or int(where.split()[1]) != self.order.generation:
            return
        present = self._present.setdefault(where, {})
        present[worker.number] = (value, tell)
        if len(present) < len(self.order.workers):
            return
        del self._present[where]
        old = {value for number, (value, _) in present.items() if not self.workers[number].is_new}
        if where.startswith("enter") and self.terms.mode == "synchronous":
            assert len(old) <= 1, f"a step was applied for some and not for others: {present}"
        largest = max(value for value, _ in present.values())
        self.is_over = self.is_over or (where.startswith("meet") and largest == -1)
        for number, (_, tell_it) in present.items():
            self._release(self.workers[number], lambda tell_it=tell_it: tell_it(largest))

    def _release(self, worker: SimulatedWorker, tell: Callable[[], None]) -> None:
        def hear() -> None:
            tell()
            worker.go_on()

        self.network.send(self._self, worker, hear)

    # Faults

    def strike(self, *, kill: bool) -> None:
        """A member is killed, and replaced; or stopped, put out, and let in again when it is back."""
        members = [self.workers[number] for number in self.order.workers if self.workers[number].is_running]
        if self.is_over or sum(not worker.is_new for worker in members) < 2:
            return  # somebody must know where the job is
        victim = self.network.rng.choice(members)
        victim.is_dead, victim.is_stopped = kill, not kill
        if kill:
            self._start()
            self.network.after(self.network.rng.uniform(0.001, 0.3), self._form)
            return
        self.network.after(1.0, self._form)
        back = self.network.rng.uniform(0.5, 5.0)
        self.network.after(back, victim.wake)
        self.network.after(back + self.network.rng.uniform(0.0, 2.0), self._form)

    def join(self) -> None:
        if not self.is_over:
            self._start()
            self._form()

    def _form(self) -> None:
        if self.is_over:
            return
        before = self.order.workers if self.order is not None else ()
        generation = self.order.generation + 1 if self.order is not None else 1
        workers = tuple(number for number, worker in self.workers.items() if worker.is_running)
        self.order = order = Order(generation, workers)
        self._present = {}
        for number in workers:
            worker = self.workers[number]
            worker.is_new = worker.is_new or number not in before
            self.network.send(self._self, worker, lambda worker=worker: worker.hear_order(order))

    def _start(self) -> None:
        number = len(self.workers)
        self.workers[number] = worker = SimulatedWorker(self, number)
        self._tell_map(worker, self.group.map)

    def _spread_map(self, map_: ServerMap) -> None:
        for worker in self.workers.values():
            self._tell_map(worker, map_)

    def _tell_map(self, worker: SimulatedWorker, map_: ServerMap) -> None:
        self.network.send(self._self, worker, lambda: worker.hear_map(map_))

    def _answer(self, server: SimulatedServer, answer: Answer) -> None:
        worker = self.workers[answer.worker]
        self.network.send(server, worker, lambda: worker.hear_answer(answer.answer))
