"""Facts for the launcher's supervisor, and what it makes of a row of them."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from shoal.events import (
    CheckpointLost,
    CheckpointPublished,
    CheckpointStarted,
    StepsApplied,
    StopRequested,
    StorageFailed,
    StorageRestored,
    WorkerDied,
    WorkerFailed,
    WorkerJoined,
    WorkerLeft,
)
from shoal.launching import texts
from shoal.launching.supervision.orders import (
    CoordinatorBack,
    CoordinatorExited,
    Fact,
    FinishJob,
    Instruction,
    Signalled,
)
from shoal.launching.supervision.supervisor import Supervisor
from shoal.wire.messages import Ended
from support.records import applied

BACK = CoordinatorBack()
KILLED = CoordinatorExited("was killed by SIGKILL")
GOOD = Ended(exit_code=0, error="", text="all 2 workers finished")
LOST = Ended(exit_code=3, error="WorkerLost", text="worker 1 was killed by SIGKILL in step 4")
CTRL_C = Signalled(signal.SIGINT)
STOP_NOTED = StopRequested(worker=None, reason=texts.STOP_WORDS[signal.SIGINT])


def joined(worker: int) -> WorkerJoined:
    return WorkerJoined(worker=worker, host="here", process=10 + worker, address="127.0.0.1:9")


def left(worker: int) -> WorkerLeft:
    return WorkerLeft(worker=worker, step=1, reason="finished")


def handed_over(worker: int) -> WorkerLeft:
    return WorkerLeft(worker=worker, step=1, reason="got SIGTERM", is_handover=True)


def died(worker: int) -> WorkerDied:
    return WorkerDied(worker=worker, host="here", process=1, step=4, operation="", reason="")


def stepped(worker: int) -> StepsApplied:
    return applied(worker, 1)


def turned_away(worker: int) -> WorkerFailed:
    return WorkerFailed(worker=worker, step=0, error="TermsDiffer", text="its batch size is 8, the job's is 4")


def saving(name: str, *, is_last: bool = False) -> CheckpointStarted:
    return CheckpointStarted(checkpoint=name, step=1, reason="every step", is_last=is_last)


def saved(name: str) -> CheckpointPublished:
    return CheckpointPublished(checkpoint=name, step=1, size=1, seconds=1, blocked=0, removed=(), reason="every step")


def unsaved(name: str) -> CheckpointLost:
    return CheckpointLost(checkpoint=name, step=1, worker=0, reason="no space left on device")


def unwritten() -> StorageFailed:
    return StorageFailed(file="run/decisions.sqlite", free=0, holds_up=True, reason="no space left on device")


def written() -> StorageRestored:
    return StorageRestored(file="run/decisions.sqlite", seconds=1.0, holds_up=True, reason="there is room")


def play(facts: Sequence[Fact], *, workers: int = 2, step: float = 0.01) -> list[Instruction]:
    """From the moment on that the coordinator answers."""
    supervisor = connected(workers)
    out: list[Instruction] = []
    for number, fact in enumerate(facts):
        out += supervisor.handle(fact, number * step)
    return out


def connected(workers: int) -> Supervisor:
    supervisor = Supervisor(workers)
    assert supervisor.handle(BACK, 0.0) == ()
    return supervisor


def finishes(facts: Sequence[Fact]) -> FinishJob:
    [finish] = [instruction for instruction in play(facts) if isinstance(instruction, FinishJob)]
    return finish
