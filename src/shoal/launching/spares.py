"""The spare processes of a job (`--spares`): keeps as many as asked for and lets one go when a worker is replaced.

They are no workers before they go, and end with the job. Not here: what happens in such a process (`spare`).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from shoal.engines.engine import Engine, ProcessSpec
from shoal.entry.spare import READY, Order, encode_order
from shoal.environment import autoload_choice
from shoal.errors import ShoalError
from shoal.launching.specs import Job, spare_process

REFILL = 3.0  # seconds after one was used or ended that the next is started: the one that goes has precedence
MOST_FAILURES = 5  # spares in a row that end before they are ready, after which no more are started


@dataclass
class _Spare:
    pipe: int  # this end of the pipe through which it is told to go
    is_ready: bool = False


class Spares:
    def __init__(self, job: Job, engine: Engine) -> None:
        self._job = job
        self._engine = engine
        self._spares: dict[str, _Spare] = {}
        self._count = 0  # started so far
        self._due = 0.0
        self._failures = 0

    @property
    def next_due(self) -> float | None:
        """When `refill` has something to do."""
        return self._due if self._is_short else None

    def refill(self, now: float) -> None:
        """Start those that are missing."""
        while self._is_short and now >= self._due:
            self._start()

    def owns(self, name: str) -> bool:
        return name in self._spares

    def printed(self, name: str, lines: tuple[str, ...]) -> None:
        if any(READY in line for line in lines):  # what it imports may have printed half a line before
            self._spares[name].is_ready = True
            self._failures = 0

    def exited(self, name: str, now: float) -> None:
        spare = self._spares.pop(name)
        os.close(spare.pipe)
        self._failures += 0 if spare.is_ready else 1
        self._due = now + REFILL

    def go(self, spec: ProcessSpec, now: float) -> bool:
        """Make a spare the process of `spec`; False if none is ready."""
        name = next((name for name, spare in self._spares.items() if spare.is_ready), None)
        if name is None:
            return False
        spare = self._spares.pop(name)
        self._due = now + REFILL
        order = Order(
            script=self._job.script, arguments=self._job.arguments, variables={**spec.variables, **autoload_choice()}
        )
        try:
            if not self._engine.rename(name, spec.name, log=spec.log):
                return False
            # Whoever dies now, or has just died, does so as this worker.
            with contextlib.suppress(BrokenPipeError):
                _write_all(spare.pipe, encode_order(order))
            return True
        finally:
            os.close(spare.pipe)

    def close(self) -> None:
        for spare in self._spares.values():
            os.close(spare.pipe)
        self._spares.clear()

    @property
    def _is_short(self) -> bool:
        return len(self._spares) < self._job.config.spares and self._failures < MOST_FAILURES

    def _start(self) -> None:
        self._count += 1
        theirs, ours = os.pipe()
        try:
            spec = spare_process(self._job, self._count, theirs)
            self._engine.start(spec)
            self._spares[spec.name] = _Spare(ours)
        except ShoalError:  # no spare is no misfortune
            os.close(ours)
            self._failures += 1
        finally:
            os.close(theirs)


def _write_all(pipe: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]
