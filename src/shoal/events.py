"""Everything that can happen to a job, as typed values; one line each in `events.jsonl`.

An event says what happened and, where something was decided, why (`reason`). The coordinator is the one writer of a
job's file; workers send it theirs. Not here: per-step metrics.
"""

from __future__ import annotations

import msgspec

from shoal.bounds import Count, ExitCode, Items, Members, Name, Ordinal, Text, Total, Values
from shoal.steps import StepRow
from shoal.values import ServerLoad, TimeShares


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=False):
    """Base of all events. The tag is the event's name in the file."""


class JobStarted(Event, frozen=True, tag="job-started"):
    script: Text
    arguments: Members[Text]
    workers: Ordinal
    strategy: Name
    schedule: Name
    codec: Name
    seed: Total


class WorkerJoined(Event, frozen=True, tag="worker-joined"):
    worker: Ordinal
    host: Name
    process: Ordinal
    address: Name


class GenerationFormed(Event, frozen=True, tag="generation-formed"):
    generation: Ordinal
    workers: Members[Ordinal]  # by rank
    schedule: Name
    codec: Name
    reason: Text


class ScheduleChosen(Event, frozen=True, tag="schedule-chosen"):
    """Who sends what to whom in this generation, by the size of a tensor. Sent by rank 0 only."""

    generation: Ordinal
    setting: Name  # what was asked for; auto: the links decide
    ranges: Members[tuple[Count, Name]]  # bytes from which on each schedule reduces; the first is from 0
    order: Members[Ordinal]  # of the ranks around a ring; empty: 0, 1, 2, ...
    seconds: float  # that measuring the links took; 0: nothing was measured
    reason: Text  # with the figures behind it


class LoopStarted(Event, frozen=True, tag="loop-started"):
    """A loop over data begins; sent by rank 0 only."""

    loop: Ordinal  # the call's number in the script
    epochs: Count
    steps_per_epoch: Count | None  # None: a stream whose length is not known
    global_batch: Count  # samples per step over all workers
    samples_per_epoch: Count | None
    first_epoch: Count = 0  # a nested loop covers one epoch of several
    steps: Count | None = None  # where the script limits them: after how many steps the loop ends
    end: Count | None = None  # applied steps at its end, with later epochs of a nested loop; None: not known
    replaced: Count = 0  # steps that servers had applied to the values which this loop's replace; 0: no server had any


class LoopEnded(Event, frozen=True, tag="loop-ended"):
    """All workers have left a loop over data; sent by rank 0 only."""

    loop: Ordinal
    step: Count  # applied steps


class StepsApplied(Event, frozen=True, tag="steps-applied"):
    """What one worker's process has done since it began: the newest says it all. Sent a few times a second at most."""

    worker: Ordinal
    generation: Ordinal  # in which this worker last applied a step; 0: in none yet
    step: Count  # applied steps so far
    epoch: Count
    samples: Total  # this worker's own, of applied steps; total
    seconds: float  # inside loops; total
    shares: TimeShares  # of those seconds
    bytes_sent: Total  # to peers and servers; total
    values: Values  # last logged value of each name, this worker's own; None: nan or infinite
    value_samples: Count = 1  # this worker's samples in the step that the values are from
    bytes_shared: Total = 0  # that servers on its machine read from its memory, unsent; total
    rows: Items[StepRow] = ()  # one per step; they go into the metrics, not into the record of events
    clock: float | msgspec.UnsetType = msgspec.UNSET  # its own when it sent this, in seconds; not in the record either


class StepVoided(Event, frozen=True, tag="step-voided"):
    worker: Ordinal
    generation: Ordinal
    step: Count  # the step that is redone
    operation: Text
    reason: Text
    samples: Total = 0  # that will be used again: of the whole step, or of the update of one worker that runs free
    is_own: bool = False  # one worker's own update


class BatchChosen(Event, frozen=True, tag="batch-chosen"):
    """The number of workers changed: what becomes of batch and learning rate. Sent by rank 0 only."""

    generation: Ordinal
    workers: Ordinal
    global_batch: Count  # samples per step over all workers
    worker_batch: float  # mean over workers
    lr_factor: float  # what learning rates are multiplied by, against those that the script set
    reason: Text


class ProgressResumed(Event, frozen=True, tag="progress-resumed"):
    """Training goes on after it stood still. By the coordinator, from the steps that all workers have reported."""

    generation: Ordinal
    step: Count  # applied steps, with the first one after
    time: float  # when that one was applied, seconds since 1970
    seconds: float  # since the last applied step before; of what began outside loops, since its first sign
    redone: Count  # steps that are done again: those that were taken back, and tries that were void
    samples_redone: Total
    reason: Text  # why training stood still
    taken_back: Count = 0  # of those that are done again, steps that had been applied: whoever had their result is lost
    samples_taken_back: Total = 0


class ReplicaDiffered(Event, frozen=True, tag="replica-differed"):
    """A worker's parameters were not what the others' were, bit for bit. Sent by rank 0 only."""

    worker: Ordinal | None  # None: there was no majority to tell who is wrong
    step: Count
    reason: Text  # what was found, and what is done about it


class UndoKept(Event, frozen=True, tag="undo-kept"):
    """Several optimizer steps in one iteration: a copy is kept so that all are applied or none."""

    worker: Ordinal
    size: Total  # bytes
    seconds: float  # what one copy took
    reason: Text


class StateCopied(Event, frozen=True, tag="state-copied"):
    worker: Ordinal  # who received it
    source: Ordinal  # worker it came from
    step: Count
    size: Total  # bytes
    seconds: float
    reason: Text


class WentBack(Event, frozen=True, tag="went-back"):
    """A worker was lost in code behind a loop, which nobody else has run for it: all run that code again."""

    worker: Ordinal  # who says so
    lost: Members[Ordinal]  # workers
    loop: Ordinal  # number, in program order
    step: Count
    reason: Text


class EpochEnded(Event, frozen=True, tag="epoch-ended"):
    epoch: Count  # counts from 0
    step: Count
    samples: Total  # of the whole epoch over all workers
    seconds: float
    timed: Count | None = None  # samples that took those seconds, where the job was resumed within the epoch


class Evaluated(Event, frozen=True, tag="evaluated"):
    step: Count
    samples: Total
    scores: Values  # None: nan or infinite, which JSON cannot say


class StopRequested(Event, frozen=True, tag="stop-requested"):
    worker: Ordinal | None  # None: asked for from outside, by Ctrl-C or a signal
    reason: Text


class StopAgreed(Event, frozen=True, tag="stop-agreed"):
    step: Count
    reason: Text


class CheckpointStarted(Event, frozen=True, tag="checkpoint-started"):
    """The state of this step is being copied and written; sent by rank 0 only."""

    checkpoint: Name  # its name
    step: Count
    reason: Text
    is_last: bool = False  # the job waits for it


class CheckpointDeferred(Event, frozen=True, tag="checkpoint-deferred"):
    """One was due and is made later; sent by rank 0 only."""

    step: Count
    reason: Text


class CheckpointPublished(Event, frozen=True, tag="checkpoint-published"):
    checkpoint: Name
    step: Count
    size: Total  # bytes of all parts
    seconds: float  # from the copy to the publication
    blocked: float  # seconds that training was held up, on the worker where that was longest
    removed: Items[Name]  # older ones that made room
    reason: Text
    mark: Name = ""  # marked ones are kept


class CheckpointLost(Event, frozen=True, tag="checkpoint-lost"):
    """One could not be written whole. Training goes on, and the next one will be tried."""

    checkpoint: Name
    step: Count
    worker: Ordinal | None  # whose part failed; None: the coordinator could not publish it
    reason: Text


class CheckpointRefused(Event, frozen=True, tag="checkpoint-refused"):
    """A job that is resumed cannot use this one and looks at the one before."""

    checkpoint: Name
    file: Name  # name within the checkpoint; empty where it is none in particular
    reason: Text


class Resumed(Event, frozen=True, tag="resumed"):
    """The job goes on from a checkpoint; sent by rank 0 only."""

    checkpoint: Name
    step: Count
    workers: Ordinal  # how many wrote it
    reason: Text


class WorkerReturned(Event, frozen=True, tag="worker-returned"):
    """Its connection had broken, and it is back; it was in the job all the time."""

    worker: Ordinal
    generation: Ordinal


class WorkerExpelled(Event, frozen=True, tag="worker-expelled"):
    """It may be alive, but the others go on without it. It may come back as a newcomer."""

    worker: Ordinal
    step: Count
    reason: Text


class WorkerStarted(Event, frozen=True, tag="worker-started"):
    """The launcher started a process in place of one that is gone, or let a spare one go."""

    worker: Ordinal
    is_spare: bool  # it had torch imported already
    reason: Text


class Waiting(Event, frozen=True, tag="waiting"):
    """There are too few workers; the job goes on when there are enough."""

    workers: Ordinal  # that are there
    needed: Ordinal
    reason: Text


class CoordinatorReturned(Event, frozen=True, tag="coordinator-returned"):
    """Its process is a new one, which goes on with the job as its journal has it."""

    generation: Ordinal
    reason: Text
    workers: Members[Ordinal] = ()  # members of that generation


class StorageFailed(Event, frozen=True, tag="storage-failed"):
    """The coordinator cannot write a file of the run directory; said when that begins, and again while it lasts."""

    file: Name  # path
    free: Total | None  # bytes that its disk has left; None: the disk does not say
    holds_up: bool  # decisions wait for it: nobody is let in, replaced or put out meanwhile
    reason: Text  # with what to do about it


class StorageRestored(Event, frozen=True, tag="storage-restored"):
    """The file can be written again, and nothing that waited for it is lost, unless `reason` says so."""

    file: Name
    seconds: float  # that it could not be written
    holds_up: bool  # decisions waited for it
    reason: Text


class ConnectionIntercepted(Event, frozen=True, tag="connection-intercepted"):
    """Somebody between two processes of the job decrypted a connection, which the listening end therefore refused."""

    source: Name  # host that the connection came from
    listener: Name  # such as "the coordinator" or "worker 3"
    reason: Text


class FaultInjected(Event, frozen=True, tag="fault-injected"):
    """A fault on purpose (`--chaos`)."""

    fault: Name  # kill, stop, cut, slow, fill-disk or kill-coordinator
    worker: Ordinal | None  # None: the coordinator, the disk or a server
    seconds: float | None  # how long it lasts; None: it is no lasting one
    reason: Text
    server: Ordinal | None = None


class WorkerLeft(Event, frozen=True, tag="worker-left"):
    worker: Ordinal
    step: Count
    reason: Text
    is_handover: bool = False  # its script is not done: it was told to go, and the job goes on without it


class WorkerFailed(Event, frozen=True, tag="worker-failed"):
    """User code raised, or a check of ours did. `error` is the class name."""

    worker: Ordinal
    step: Count
    error: Name
    text: Text  # the error's line, or the whole traceback for an exception in user code


class WorkerDied(Event, frozen=True, tag="worker-died"):
    worker: Ordinal
    host: Name
    process: Ordinal
    step: Count  # the last one it was known to work on
    operation: Text
    reason: Text


class ServerJoined(Event, frozen=True, tag="server-joined"):
    """A parameter server is in its group. This and what follows about servers is the launcher's."""

    server: Ordinal
    host: Name
    process: Ordinal
    address: Name


class ServerLost(Event, frozen=True, tag="server-lost"):
    server: Ordinal
    reason: Text


class ServerLeft(Event, frozen=True, tag="server-left"):
    """It was taken out of its group, and what it held is on others."""

    server: Ordinal
    reason: Text


class ServersChanged(Event, frozen=True, tag="servers-changed"):
    """The group has a new map: who serves, and whether blocks are on their way."""

    version: Ordinal
    servers: Members[Ordinal]  # that serve
    is_settled: bool  # every block is on all servers where it should be
    seconds: float  # since what brought it about: a loss, a request, the beginning of the move
    size: Total  # bytes that were moved for it, where it is settled
    reason: Text


class ParametersGone(Event, frozen=True, tag="parameters-gone"):
    """No living server has some blocks any more: they come from the newest checkpoint."""

    server: Ordinal | None  # that should hold them now; None: all servers were lost, and a worker says so
    blocks: Total
    size: Total  # bytes
    reason: Text
    version: Ordinal = 0  # of the map: under a later one the servers that should have them then say so again


class ServersMeasured(Event, frozen=True, tag="servers-measured"):
    """Every few seconds."""

    version: Ordinal  # of the map
    loads: Members[ServerLoad]
    staleness: Members[Total] = ()  # updates so far by how many others came between read and push: 0, 1, 2, ...
    clocks: Members[tuple[Ordinal, Total]] = ()  # (worker, its updates)


class Advised(Event, frozen=True, tag="advised"):
    """Something works but costs more than it needs to, or was chosen for a reason worth telling."""

    worker: Ordinal | None  # who says so; None: the coordinator
    text: Text


class JobEnded(Event, frozen=True, tag="job-ended"):
    outcome: Name  # finished, stopped, failed or interrupted
    exit_code: ExitCode
    reason: Text
    seconds: float


AnyEvent = (
    JobStarted | WorkerJoined | GenerationFormed | ScheduleChosen | LoopStarted | LoopEnded | StepsApplied | StepVoided
    | BatchChosen | ProgressResumed | ReplicaDiffered | UndoKept | StateCopied | WentBack | EpochEnded | Evaluated
    | StopRequested | StopAgreed
    | CheckpointStarted | CheckpointDeferred | CheckpointPublished | CheckpointLost | CheckpointRefused | Resumed
    | WorkerReturned | WorkerExpelled | WorkerStarted | Waiting | CoordinatorReturned | FaultInjected
    | StorageFailed | StorageRestored | ConnectionIntercepted
    | WorkerLeft | WorkerFailed | WorkerDied
    | ServerJoined | ServerLost | ServerLeft | ServersChanged | ParametersGone | ServersMeasured
    | Advised | JobEnded
)  # fmt: skip  # one line per kind would fill a page


class Record(msgspec.Struct, frozen=True):
    """One line of `events.jsonl`."""

    time: float  # seconds since 1970, by the coordinator's clock
    event: AnyEvent
