"""The spare processes of a job (`--spares`): keeps as many as asked for, and turns one into a worker when needed.

Spares end with the job. Not here: what happens inside such a process (`entry.spare`).
"""

from __future__ import annotations

from shoal.entry.spare import READY, Order, encode_order
from shoal.environment import autoload_choice
from shoal.errors import ShoalError
from shoal.launching.processes.running import JobProcess, Processes
from shoal.launching.processes.specs import Job, spare_process

REFILL = 3.0  # seconds between the use or end of a spare and the next start: the new worker has precedence
MOST_FAILURES = 5  # spares in a row that end before they are ready, after which no more are started


class Spares:
    def __init__(self, job: Job, processes: Processes) -> None:
        self._job = job
        self._processes = processes
        self._is_ready: dict[str, bool] = {}  # by the name of a spare
        self._count = 0  # started so far
        self._due = 0.0
        self._failures = 0

    @property
    def next_due(self) -> float | None:
        """When to call `refill`."""
        return self._due if self._is_short else None

    def refill(self, now: float) -> None:
        """Start missing spares."""
        while self._is_short and now >= self._due:
            self._start()

    def owns(self, name: str) -> bool:
        return name in self._is_ready

    def printed(self, name: str, lines: tuple[str, ...]) -> None:
        if any(READY in line for line in lines):  # an import may have printed half a line before
            self._is_ready[name] = True
            self._failures = 0

    def exited(self, name: str, now: float) -> None:
        self._failures += 0 if self._is_ready.pop(name) else 1
        self._due = now + REFILL

    def go(self, worker: JobProcess, now: float) -> bool:
        """Turn a spare into that worker; False if none is ready."""
        name = next((name for name, is_ready in self._is_ready.items() if is_ready), None)
        if name is None:
            return False
        del self._is_ready[name]
        self._due = now + REFILL
        variables = {**worker.spec.variables, **autoload_choice()}
        order = Order(script=self._job.script, arguments=self._job.arguments, variables=variables)
        return self._processes.become(name, worker, encode_order(order))

    @property
    def _is_short(self) -> bool:
        return len(self._is_ready) < self._job.config.spares and self._failures < MOST_FAILURES

    def _start(self) -> None:
        self._count += 1
        planned = spare_process(self._job, self._count)
        try:
            self._processes.start(planned)
        except ShoalError:  # the job can do without a spare
            self._failures += 1
        else:
            self._is_ready[planned.name] = False
