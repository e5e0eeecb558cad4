"""What happens in loops and steps: how far training is, what is done again and why."""

from __future__ import annotations

import msgspec

from shoal.bounds import Count, Items, Members, Name, Ordinal, Text, Total, Values
from shoal.events.event import Event
from shoal.steps import StepRow
from shoal.values import ProcessUse, TimeShares


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
    use: ProcessUse | None = None  # of its process, as last measured; None: not measured
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


class ScriptDoubtful(Event, frozen=True, tag="script-doubtful"):
    """The script does something that is probably a mistake, but may be meant. People are told each text once."""

    worker: Ordinal  # who noticed
    text: Text  # what is doubtful, what is at stake, and what to write instead


class FileTruncated(Event, frozen=True, tag="file-truncated"):
    """A script's own code empties a file to write it anew. Not in the record: workers that empty the same file are."""

    worker: Ordinal
    generation: Ordinal
    host: Name
    path: Name  # absolute
    name: Name  # as the script has it
    place: Name  # of the script: file and line


class StopRequested(Event, frozen=True, tag="stop-requested"):
    worker: Ordinal | None  # None: asked for from outside, by Ctrl-C or a signal
    reason: Text


class StopAgreed(Event, frozen=True, tag="stop-agreed"):
    step: Count
    reason: Text
