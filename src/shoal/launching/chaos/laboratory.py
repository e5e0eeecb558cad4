"""The fault laboratory of a running job: causes the faults of the `--chaos` timetable, and ends them in time.

It kills and stops the job's processes. Workers simulate cut links, slow links and full disks themselves, when asked
through the coordinator. No fault strikes a job that is ending.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.events import Event, FaultInjected, GenerationFormed, StepsApplied
from shoal.launching.chaos.clauses import Clause
from shoal.launching.chaos.fault_timetable import FaultTimetable, Present, Strike
from shoal.launching.coordinator_line import CoordinatorLine
from shoal.launching.processes.running import Processes
from shoal.launching.processes.specs import COORDINATOR, server_name, worker_name
from shoal.membership.watcher import WatcherClient
from shoal.wire.messages import Inject


@dataclass(frozen=True)
class Running:
    """Processes that run on this machine."""

    workers: frozenset[int]
    servers: tuple[int, ...] = ()  # those that have joined their group


class Laboratory:
    def __init__(self, clauses: tuple[Clause, ...], *, seed: int, processes: Processes, line: CoordinatorLine) -> None:
        self._timetable = FaultTimetable(clauses, seed=seed)
        self._processes = processes
        self._line = line
        self._members: tuple[int, ...] = ()
        self._step = 0
        self._stopped: dict[str, float] = {}  # stopped processes, and when to wake them up

    @property
    def next_due(self) -> float | None:
        """When `act` should be called at the latest."""
        due = min(self._stopped.values(), default=math.inf)
        if (strike := self._timetable.next_due) is not None:
            due = min(due, strike)
        return None if due == math.inf else due

    def observe(self, event: Event, now: float) -> None:
        if isinstance(event, GenerationFormed):
            self._members = event.workers
            self._timetable.begin(now)
        elif isinstance(event, StepsApplied):
            self._step = max(self._step, event.step)

    def act(self, running: Running, report: Callable[[FaultInjected], None], now: float) -> None:
        """Cause the faults that are due, and wake up stopped processes in time."""
        self._wake(now)
        here = tuple(worker for worker in self._members if worker in running.workers)
        present = Present(here=here, members=self._members, step=self._step, servers=running.servers)
        for fault in self._timetable.take_due(now, present):
            report(
                FaultInjected(
                    fault=fault.verb,
                    worker=fault.worker,
                    seconds=fault.seconds,
                    reason=fault.reason,
                    server=fault.server,
                )
            )
            self._strike(fault, now)

    def cease(self) -> None:
        """The job is ending: wake all stopped processes, so that they can end with it."""
        self._wake(math.inf)

    def _strike(self, fault: Strike, now: float) -> None:
        if fault.verb == "kill-coordinator":
            self._processes.send_signal({COORDINATOR}, signal.SIGKILL)
        elif fault.verb == "kill" and (name := _process(fault)) is not None:
            self._processes.send_signal({name}, signal.SIGKILL)
        elif fault.verb == "stop" and (name := _process(fault)) is not None:
            self._processes.send_signal({name}, signal.SIGSTOP)
            self._stopped[name] = max(self._stopped.get(name, 0.0), now + (fault.seconds or 0.0))
        else:
            for worker in self._members if fault.worker is None else (fault.worker,):
                asked = Inject(
                    worker=worker,
                    fault=fault.verb,
                    seconds=fault.seconds or 0.0,
                    peer=fault.peer,
                    rate=fault.rate or 0.0,
                )
                self._line.send(partial(_ask, asked))

    def _wake(self, now: float) -> None:
        for name in [name for name, until in self._stopped.items() if until <= now]:
            del self._stopped[name]
            self._processes.send_signal({name}, signal.SIGCONT)


def _process(fault: Strike) -> str | None:
    """Name of the process that the fault strikes; None if it strikes no single process."""
    if fault.server is not None:
        return server_name(fault.server)
    return None if fault.worker is None else worker_name(fault.worker)


def _ask(asked: Inject, client: WatcherClient) -> None:
    client.inject(asked)
