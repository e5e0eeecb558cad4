"""Everything that can happen to a job, as typed values; one line each in `events.jsonl`.

An event says what happened and, where something was decided, why (`reason`). The coordinator is the one writer of a
job's file; workers send it theirs. Not here: per-step metrics.
"""

from __future__ import annotations

import msgspec

from shoal.steps import StepRow
from shoal.values import ServerLoad, TimeShares


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=False):
    """Base of all events. The tag is the event's name in the file."""


class JobStarted(Event, frozen=True, tag="job-started"):
    script: str
    arguments: tuple[str, ...]
    workers: int
    strategy: str
    schedule: str
    codec: str
    seed: int


class WorkerJoined(Event, frozen=True, tag="worker-joined"):
    worker: int
    host: str
    process: int
    address: str


class GenerationFormed(Event, frozen=True, tag="generation-formed"):
    generation: int
    workers: tuple[int, ...]  # by rank
    schedule: str
    codec: str
    reason: str


class ScheduleChosen(Event, frozen=True, tag="schedule-chosen"):
    """Who sends what to whom in this generation, by the size of a tensor. Sent by rank 0 only."""

    generation: int
    setting: str  # what was asked for; auto: the links decide
    ranges: tuple[tuple[int, str], ...]  # bytes from which on each schedule reduces; the first is from 0
    order: tuple[int, ...]  # of the ranks around a ring; empty: 0, 1, 2, ...
    seconds: float  # that measuring the links took; 0: nothing was measured
    reason: str  # with the figures behind it


class LoopStarted(Event, frozen=True, tag="loop-started"):
    """A loop over data begins; sent by rank 0 only."""

    loop: int  # the call's number in the script
    epochs: int
    steps_per_epoch: int | None  # None: a stream whose length is not known
    global_batch: int  # samples per step over all workers
    samples_per_epoch: int | None
    first_epoch: int = 0  # a nested loop covers one epoch of several
    steps: int | None = None  # where the script limits them: after how many steps the loop ends
    end: int | None = None  # applied steps at its end, with later epochs of a nested loop; None: not known
    replaced: int = 0  # steps that servers had applied to the values which this loop's replace; 0: no server had any


class LoopEnded(Event, frozen=True, tag="loop-ended"):
    """All workers have left a loop over data; sent by rank 0 only."""

    loop: int
    step: int  # applied steps


class StepsApplied(Event, frozen=True, tag="steps-applied"):
    """What one worker's process has done since it began: the newest says it all. Sent a few times a second at most."""

    worker: int
    generation: int  # in which this worker last applied a step; 0: in none yet
    step: int  # applied steps so far
    epoch: int
    samples: int  # this worker's own, of applied steps; total
    seconds: float  # inside loops; total
    shares: TimeShares  # of those seconds
    bytes_sent: int  # to peers and servers; total
    values: dict[str, float | None]  # last logged value of each name, this worker's own; None: nan or infinite
    value_samples: int = 1  # this worker's samples in the step that the values are from
    bytes_shared: int = 0  # that servers on its machine read from its memory, unsent; total
    rows: tuple[StepRow, ...] = ()  # one per step; they go into the metrics, not into the record of events
    clock: float | msgspec.UnsetType = msgspec.UNSET  # its own when it sent this, in seconds; not in the record either


class StepVoided(Event, frozen=True, tag="step-voided"):
    worker: int
    generation: int
    step: int  # the step that is redone
    operation: str
    reason: str
    samples: int = 0  # that will be used again: of the whole step, or of the update of one worker that runs free
    is_own: bool = False  # one worker's own update


class BatchChosen(Event, frozen=True, tag="batch-chosen"):
    """The number of workers changed: what becomes of batch and learning rate. Sent by rank 0 only."""

    generation: int
    workers: int
    global_batch: int  # samples per step over all workers
    worker_batch: float  # mean over workers
    lr_factor: float  # what learning rates are multiplied by, against those that the script set
    reason: str


class ProgressResumed(Event, frozen=True, tag="progress-resumed"):
    """Training goes on after it stood still. By the coordinator, from the steps that all workers have reported."""

    generation: int
    step: int  # applied steps, with the first one after
    time: float  # when that one was applied, seconds since 1970
    seconds: float  # since the last applied step before; of what began outside loops, since its first sign
    redone: int  # steps that are done again: those that were taken back, and tries that were void
    samples_redone: int
    reason: str  # why training stood still
    taken_back: int = 0  # of those that are done again, steps that had been applied: whoever had their result is lost
    samples_taken_back: int = 0


class ReplicaDiffered(Event, frozen=True, tag="replica-differed"):
    """A worker's parameters were not what the others' were, bit for bit. Sent by rank 0 only."""

    worker: int | None  # None: there was no majority to tell who is wrong
    step: int
    reason: str  # what was found, and what is done about it


class UndoKept(Event, frozen=True, tag="undo-kept"):
    """Several optimizer steps in one iteration: a copy is kept so that all are applied or none."""

    worker: int
    size: int  # bytes
    seconds: float  # what one copy took
    reason: str


class StateCopied(Event, frozen=True, tag="state-copied"):
    worker: int  # who received it
    source: int  # worker it came from
    step: int
    size: int  # bytes
    seconds: float
    reason: str


class EpochEnded(Event, frozen=True, tag="epoch-ended"):
    epoch: int  # counts from 0
    step: int
    samples: int  # of the whole epoch over all workers
    seconds: float
    timed: int | None = None  # samples that took those seconds, where the job was resumed within the epoch


class Evaluated(Event, frozen=True, tag="evaluated"):
    step: int
    samples: int
    scores: dict[str, float | None]  # None: nan or infinite, which JSON cannot say


class StopRequested(Event, frozen=True, tag="stop-requested"):
    worker: int | None  # None: asked for from outside, by Ctrl-C or a signal
    reason: str


class StopAgreed(Event, frozen=True, tag="stop-agreed"):
    step: int
    reason: str


class CheckpointStarted(Event, frozen=True, tag="checkpoint-started"):
    """The state of this step is being copied and written; sent by rank 0 only."""

    checkpoint: str  # its name
    step: int
    reason: str
    is_last: bool = False  # the job waits for it


class CheckpointDeferred(Event, frozen=True, tag="checkpoint-deferred"):
    """One was due and is made later; sent by rank 0 only."""

    step: int
    reason: str


class CheckpointPublished(Event, frozen=True, tag="checkpoint-published"):
    checkpoint: str
    step: int
    size: int  # bytes of all parts
    seconds: float  # from the copy to the publication
    blocked: float  # seconds that training was held up, on the worker where that was longest
    removed: tuple[str, ...]  # older ones that made room
    reason: str
    mark: str = ""  # marked ones are kept


class CheckpointLost(Event, frozen=True, tag="checkpoint-lost"):
    """One could not be written whole. Training goes on, and the next one will be tried."""

    checkpoint: str
    step: int
    worker: int | None  # whose part failed; None: the coordinator could not publish it
    reason: str


class CheckpointRefused(Event, frozen=True, tag="checkpoint-refused"):
    """A job that is resumed cannot use this one and looks at the one before."""

    checkpoint: str
    file: str  # name within the checkpoint; empty where it is none in particular
    reason: str


class Resumed(Event, frozen=True, tag="resumed"):
    """The job goes on from a checkpoint; sent by rank 0 only."""

    checkpoint: str
    step: int
    workers: int  # how many wrote it
    reason: str


class WorkerReturned(Event, frozen=True, tag="worker-returned"):
    """Its connection had broken, and it is back; it was in the job all the time."""

    worker: int
    generation: int


class WorkerExpelled(Event, frozen=True, tag="worker-expelled"):
    """It may be alive, but the others go on without it. It may come back as a newcomer."""

    worker: int
    step: int
    reason: str


class WorkerStarted(Event, frozen=True, tag="worker-started"):
    """The launcher started a process in place of one that is gone, or let a spare one go."""

    worker: int
    is_spare: bool  # it had torch imported already
    reason: str


class Waiting(Event, frozen=True, tag="waiting"):
    """There are too few workers; the job goes on when there are enough."""

    workers: int  # that are there
    needed: int
    reason: str


class CoordinatorReturned(Event, frozen=True, tag="coordinator-returned"):
    """Its process is a new one, which goes on with the job as its journal has it."""

    generation: int
    reason: str
    workers: tuple[int, ...] = ()  # members of that generation


class StorageFailed(Event, frozen=True, tag="storage-failed"):
    """The coordinator cannot write a file of the run directory; said when that begins, and again while it lasts."""

    file: str  # path
    free: int | None  # bytes that its disk has left; None: the disk does not say
    holds_up: bool  # decisions wait for it: nobody is let in, replaced or put out meanwhile
    reason: str  # with what to do about it


class StorageRestored(Event, frozen=True, tag="storage-restored"):
    """The file can be written again, and nothing that waited for it is lost, unless `reason` says so."""

    file: str
    seconds: float  # that it could not be written
    holds_up: bool  # decisions waited for it
    reason: str


class FaultInjected(Event, frozen=True, tag="fault-injected"):
    """A fault on purpose (`--chaos`)."""

    fault: str  # kill, stop, cut, slow, fill-disk or kill-coordinator
    worker: int | None  # None: the coordinator, the disk or a server
    seconds: float | None  # how long it lasts; None: it is no lasting one
    reason: str
    server: int | None = None


class WorkerLeft(Event, frozen=True, tag="worker-left"):
    worker: int
    step: int
    reason: str
    is_handover: bool = False  # its script is not done: it was told to go, and the job goes on without it


class WorkerFailed(Event, frozen=True, tag="worker-failed"):
    """User code raised, or a check of ours did. `error` is the class name."""

    worker: int
    step: int
    error: str
    text: str  # the error's line, or the whole traceback for an exception in user code


class WorkerDied(Event, frozen=True, tag="worker-died"):
    worker: int
    host: str
    process: int
    step: int  # the last one it was known to work on
    operation: str
    reason: str


class ServerJoined(Event, frozen=True, tag="server-joined"):
    """A parameter server is in its group. This and what follows about servers is the launcher's."""

    server: int
    host: str
    process: int
    address: str


class ServerLost(Event, frozen=True, tag="server-lost"):
    server: int
    reason: str


class ServerLeft(Event, frozen=True, tag="server-left"):
    """It was taken out of its group, and what it held is on others."""

    server: int
    reason: str


class ServersChanged(Event, frozen=True, tag="servers-changed"):
    """The group has a new map: who serves, and whether blocks are on their way."""

    version: int
    servers: tuple[int, ...]  # that serve
    is_settled: bool  # every block is on all servers where it should be
    seconds: float  # since what brought it about: a loss, a request, the beginning of the move
    size: int  # bytes that were moved for it, where it is settled
    reason: str


class ParametersGone(Event, frozen=True, tag="parameters-gone"):
    """No living server has some blocks any more: they come from the newest checkpoint."""

    server: int | None  # that should hold them now; None: all servers were lost, and a worker says so
    blocks: int
    size: int  # bytes
    reason: str
    version: int = 0  # of the map: under a later one the servers that should have them then say so again


class ServersMeasured(Event, frozen=True, tag="servers-measured"):
    """Every few seconds."""

    version: int  # of the map
    loads: tuple[ServerLoad, ...]
    staleness: tuple[int, ...] = ()  # updates so far by how many others came between read and push: 0, 1, 2, ...
    clocks: tuple[tuple[int, int], ...] = ()  # (worker, its updates)


class Advised(Event, frozen=True, tag="advised"):
    """Something works but costs more than it needs to, or was chosen for a reason worth telling."""

    worker: int | None  # who says so; None: the coordinator
    text: str


class JobEnded(Event, frozen=True, tag="job-ended"):
    outcome: str  # finished, stopped, failed or interrupted
    exit_code: int
    reason: str
    seconds: float


AnyEvent = (
    JobStarted | WorkerJoined | GenerationFormed | ScheduleChosen | LoopStarted | LoopEnded | StepsApplied | StepVoided
    | BatchChosen | ProgressResumed | ReplicaDiffered | UndoKept | StateCopied | EpochEnded | Evaluated
    | StopRequested | StopAgreed
    | CheckpointStarted | CheckpointDeferred | CheckpointPublished | CheckpointLost | CheckpointRefused | Resumed
    | WorkerReturned | WorkerExpelled | WorkerStarted | Waiting | CoordinatorReturned | FaultInjected
    | StorageFailed | StorageRestored
    | WorkerLeft | WorkerFailed | WorkerDied
    | ServerJoined | ServerLost | ServerLeft | ServersChanged | ParametersGone | ServersMeasured
    | Advised | JobEnded
)  # fmt: skip  # one line per kind would fill a page


class Record(msgspec.Struct, frozen=True):
    """One line of `events.jsonl`."""

    time: float  # seconds since 1970, by the coordinator's clock
    event: AnyEvent
