"""Who is dead, and what is said about it: pure judgement over what is known of the workers.

A death waits a moment for what the others know, so that its one text is complete: how the process ended comes from the
launcher, step and operation from the survivors. Not here: what becomes of the job (`core`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.errors import ScriptFailed, WorkerLost
from shoal.events import WorkerDied, WorkerFailed
from shoal.membership import reasons
from shoal.membership.roster import Worker
from shoal.values import Generation
from shoal.wire.messages import ExchangeBroken

REPORT_WAIT = 0.5  # seconds that a death or a broken exchange waits for what the others know about it


@dataclass(frozen=True)
class Evidence:
    """Everything a judgement rests on."""

    workers: Mapping[int, Worker]  # all that ever joined, by number
    generation: Generation | None
    reports: Mapping[int, ExchangeBroken]  # about the current generation, by reporting worker, in order of arrival
    has_launcher: bool  # somebody will say how a process ended
    now: float


@dataclass(frozen=True)
class Verdict:
    """What is recorded, and the error that ends the job."""

    events: tuple[WorkerDied | WorkerFailed, ...]
    error: str  # class name
    text: str


def judge(evidence: Evidence) -> Verdict | None:
    """All suspects are dead once everything is known about them, or the first has waited long enough."""
    suspects = sorted(
        (worker for worker in evidence.workers.values() if worker.is_suspect),
        key=lambda worker: (worker.suspected, worker.number),
    )
    if not suspects or suspects[0].suspected is None:
        return None
    waited = evidence.now - suspects[0].suspected
    if waited < REPORT_WAIT and not all(_is_clear(worker, evidence) for worker in suspects):
        return None
    deaths = tuple(worker.death(*_last_seen(worker, evidence)) for worker in suspects)
    also = "".join(f"; {worker.name} {worker.how} too" for worker in suspects[1:])
    return Verdict(deaths, WorkerLost.__name__, deaths[0].reason + also + suspects[0].hint)


def _is_clear(worker: Worker, evidence: Evidence) -> bool:
    """Nothing more will be learnt: how it ended is known, and a survivor said where, or there is none who could."""
    if worker.silent is not None:
        return True
    # An exit that is reported while the connection is open waits for it to close: a Leave may still be on its way.
    knows_how = worker.client is None and (worker.exit_code is not None or not evidence.has_launcher)
    members = () if evidence.generation is None else evidence.generation.members
    others = (evidence.workers[member.worker] for member in members)
    has_witness = _witness(worker, evidence) is not None
    return knows_how and (has_witness or not any(other.is_active for other in others))


def _last_seen(worker: Worker, evidence: Evidence) -> tuple[int, str]:
    """Step and operation of its last moment: from a survivor's report, else from whoever has got furthest."""
    witness = _witness(worker, evidence)
    if witness is not None:
        return witness.step, witness.operation
    known = [(other.step, other.operation) for other in evidence.workers.values() if other.is_active]
    return max([(worker.step, worker.operation), *known], key=lambda position: position[0])


def _witness(worker: Worker, evidence: Evidence) -> ExchangeBroken | None:
    """The survivor's report that tells most about this worker's last moment."""
    reports = [report for number, report in evidence.reports.items() if number != worker.number]
    return next((report for report in reports if report.peer == worker.number), reports[0] if reports else None)


def bad_exit(number: int, worker: Worker | None, code: int) -> Verdict:
    """A process that was in no step ended badly: before it joined, or after it had left."""
    name = f"worker {number}" if worker is None else worker.name
    when = "before it joined the job" if worker is None else "after it had left the job"
    text = f"{name} {reasons.how_it_exited(code)} {when}"
    step = 0 if worker is None else worker.step
    if code > 0:
        failed = WorkerFailed(worker=number, step=step, error=ScriptFailed.__name__, text=text)
        return Verdict((failed,), ScriptFailed.__name__, text)
    died = WorkerDied(
        worker=number,
        host="" if worker is None else worker.join.host,
        process=0 if worker is None else worker.join.process,
        step=step,
        operation=when,
        reason=text,
    )
    return Verdict((died,), WorkerLost.__name__, text + reasons.hint_for(code))
