"""How deaths and bad exits of workers are reported. Pure.

The process that started a worker says how it ended; the survivors say in which step and operation. Not here: who is
dead (`generations`), and what becomes of the job (`verdicts`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.errors import ScriptFailed, WorkerLost
from shoal.events import WorkerDied, WorkerFailed
from shoal.membership.core import reasons
from shoal.membership.core.roster import Fate, Worker
from shoal.wire.messages import ExchangeBroken


class LastSeen:
    """A dead member's last step and operation: from a survivor's report, else from the member that is furthest."""

    def __init__(self, members: Collection[Worker], reports: Mapping[int, ExchangeBroken]) -> None:
        self._first = tuple(reports.items())[:2]  # two, since one of them may be from the dead member itself
        self._by_peer: dict[int, ExchangeBroken] = {}
        for worker, report in reports.items():
            if report.peer is not None and report.peer != worker:
                self._by_peer.setdefault(report.peer, report)
        furthest = max(members, key=lambda worker: worker.step, default=None)
        self._furthest = (0, "") if furthest is None else (furthest.step, furthest.operation)

    def of(self, worker: Worker) -> tuple[int, str]:
        witness = self._by_peer.get(worker.number)  # a member that waited for this one knows best
        if witness is None:
            witness = next((report for number, report in self._first if number != worker.number), None)
        own = (worker.step, worker.operation)
        if witness is not None and not 0 < worker.point < witness.point:  # it had come to the place of the witness
            return witness.step, witness.operation
        return self._furthest if self._furthest[0] > worker.step else own


@dataclass(frozen=True)
class BadExit:
    """The event about a process that ended outside any step, and the error of a job that ends because of it."""

    event: WorkerDied | WorkerFailed
    error: str  # class name
    text: str


@dataclass(frozen=True)
class Exit:
    """A process has ended."""

    worker: int  # its number
    code: int
    loss: str = ""  # what took it along, such as the loss of its node


def bad_exit(exited: Exit, worker: Worker | None) -> BadExit:
    """Report a process that ended badly before it was in a generation, or after it had left."""
    number, code, how = exited.worker, exited.code, reasons.how_it_exited(exited.code, exited.loss)
    name = f"worker {number}" if worker is None else worker.name
    when = _when(worker)
    text = f"{name} {how} {when}"
    if worker is not None and worker.fate is Fate.RELEASED:
        text = reasons.lost_at_the_end(name, how)
    step = 0 if worker is None else worker.step
    if code > 0:
        failed = WorkerFailed(worker=number, step=step, error=ScriptFailed.__name__, text=text)
        return BadExit(failed, ScriptFailed.__name__, text)
    died = WorkerDied(
        worker=number,
        host="" if worker is None else worker.join.host,
        process=0 if worker is None else worker.join.process,
        step=step,
        operation=when,
        reason=text,
    )
    return BadExit(died, WorkerLost.__name__, text + ("" if exited.loss else reasons.hint_for(code)))


def _when(worker: Worker | None) -> str:
    if worker is None:
        return "before it joined the job"
    if worker.fate is Fate.RELEASED:
        return "behind shoal.main"
    return "after it had left the job" if worker.first_generation else "before it was in a generation"
