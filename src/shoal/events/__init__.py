"""Everything that can happen to a job, as typed values; one line each in `events.jsonl`.

An event says what happened and, where something was decided, why (`reason`). The coordinator is the one writer of a
job's file; workers send it theirs. Not here: per-step metrics.
"""

from __future__ import annotations

import msgspec

from shoal.events.checkpoint_events import (
    CheckpointDeferred,
    CheckpointLost,
    CheckpointMarked,
    CheckpointPublished,
    CheckpointRefused,
    CheckpointStarted,
    Resumed,
    StorageFailed,
    StorageRestored,
)
from shoal.events.event import Event
from shoal.events.machine_events import (
    CarrierChosen,
    EngineSaid,
    LinksMeasured,
    ProcessPlaced,
    ScheduleChosen,
    WorkerEquipped,
)
from shoal.events.process_events import (
    Advised,
    ConnectionIntercepted,
    CoordinatorReturned,
    FaultInjected,
    GenerationFormed,
    JobEnded,
    JobStarted,
    NewcomersHeld,
    ParametersGone,
    ServerJoined,
    ServerLeft,
    ServerLost,
    ServersChanged,
    ServersMeasured,
    Waiting,
    WorkerDied,
    WorkerExpelled,
    WorkerFailed,
    WorkerJoined,
    WorkerLeft,
    WorkerReturned,
    WorkerStarted,
)
from shoal.events.training_events import (
    BatchChosen,
    EpochEnded,
    Evaluated,
    FileTruncated,
    LoopEnded,
    LoopStarted,
    ProgressResumed,
    ReplicaDiffered,
    ScriptDoubtful,
    StateCopied,
    StepsApplied,
    StepVoided,
    StopAgreed,
    StopRequested,
    UndoKept,
    WentBack,
)

__all__ = [
    "Advised",
    "AnyEvent",
    "BatchChosen",
    "CarrierChosen",
    "CheckpointDeferred",
    "CheckpointLost",
    "CheckpointMarked",
    "CheckpointPublished",
    "CheckpointRefused",
    "CheckpointStarted",
    "ConnectionIntercepted",
    "CoordinatorReturned",
    "EngineSaid",
    "EpochEnded",
    "Evaluated",
    "Event",
    "FaultInjected",
    "FileTruncated",
    "GenerationFormed",
    "JobEnded",
    "JobStarted",
    "LinksMeasured",
    "LoopEnded",
    "LoopStarted",
    "NewcomersHeld",
    "ParametersGone",
    "ProcessPlaced",
    "ProgressResumed",
    "Record",
    "ReplicaDiffered",
    "Resumed",
    "ScheduleChosen",
    "ScriptDoubtful",
    "ServerJoined",
    "ServerLeft",
    "ServerLost",
    "ServersChanged",
    "ServersMeasured",
    "StateCopied",
    "StepVoided",
    "StepsApplied",
    "StopAgreed",
    "StopRequested",
    "StorageFailed",
    "StorageRestored",
    "UndoKept",
    "Waiting",
    "WentBack",
    "WorkerDied",
    "WorkerEquipped",
    "WorkerExpelled",
    "WorkerFailed",
    "WorkerJoined",
    "WorkerLeft",
    "WorkerReturned",
    "WorkerStarted",
]

AnyEvent = (
    JobStarted | WorkerJoined | WorkerEquipped | ProcessPlaced | EngineSaid | GenerationFormed
    | ScheduleChosen | LinksMeasured | CarrierChosen
    | LoopStarted | LoopEnded
    | StepsApplied | StepVoided
    | BatchChosen | ProgressResumed | ReplicaDiffered | UndoKept | StateCopied | WentBack | EpochEnded | Evaluated
    | ScriptDoubtful | FileTruncated | StopRequested | StopAgreed
    | CheckpointStarted | CheckpointDeferred | CheckpointPublished | CheckpointMarked | CheckpointLost
    | CheckpointRefused | Resumed
    | WorkerReturned | WorkerExpelled | WorkerStarted | Waiting | NewcomersHeld | CoordinatorReturned
    | FaultInjected
    | StorageFailed | StorageRestored | ConnectionIntercepted
    | WorkerLeft | WorkerFailed | WorkerDied
    | ServerJoined | ServerLost | ServerLeft | ServersChanged | ParametersGone | ServersMeasured
    | Advised | JobEnded
)  # fmt: skip  # one line per kind would fill a page


class Record(msgspec.Struct, frozen=True):
    """One line of `events.jsonl`."""

    time: float  # seconds since 1970, by the coordinator's clock
    event: AnyEvent
