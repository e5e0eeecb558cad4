"""The state of a job as people see it, reduced from its events. Pure: the same events give the same board.

Not here: how it is drawn (`live`, `plain`, `summary`) and the one-line notices (`notices`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal import events
from shoal.values import TimeShares
from shoal.watch.server_board import Servers

Void = tuple[int, int, int | None]  # generation, step, and the worker if each worker counts its own steps
MEMORY = 3.0  # seconds after which a measured rate has lost two thirds of its weight
CALM = 10.0  # seconds between two notices of a kind that may come many times a minute
CALM_KINDS = (events.CheckpointPublished, events.CheckpointDeferred)
LINGER = 5.0  # seconds that a worker is still shown after it has gone


def void_of(event: events.StepVoided) -> Void:
    """Identify the void step: each of its workers reports the same one."""
    return event.generation, event.step, event.worker if event.is_own else None


def as_number(value: float | None) -> float:
    """A value as a number; null stands for what is not finite, since JSON has no such numbers."""
    return math.nan if value is None else value


@dataclass(frozen=True)
class WorkerState:
    """What one worker reported so far."""

    worker: int
    step: int = 0  # applied steps
    generation: int = 0  # in which it applied its last step
    samples: int = 0  # its own, in applied steps, including steps that were taken back
    seconds: float = 0.0  # inside loops
    shares: TimeShares = field(default_factory=TimeShares)  # of those seconds
    recent_samples: float = 0.0  # fading sums; their quotient is the present rate
    recent_seconds: float = 0.0
    weight: int = 0  # samples behind `values`
    values: Mapping[str, float] = field(default_factory=dict)  # last logged
    bytes_sent: int = 0
    bytes_shared: int = 0  # read by servers from its memory

    @property
    def samples_per_second(self) -> float:
        return self.recent_samples / self.recent_seconds if self.recent_seconds > 0 else 0.0

    def after(self, event: events.StepsApplied) -> WorkerState:
        """The state after a report. Reports hold totals, so that a missing or repeated report does no harm."""
        if event.seconds < self.seconds:
            return self
        seconds = event.seconds - self.seconds
        fade = math.exp(-seconds / MEMORY)
        return WorkerState(
            worker=self.worker,
            step=event.step,
            generation=event.generation,
            samples=event.samples,
            seconds=event.seconds,
            shares=event.shares,
            recent_samples=self.recent_samples * fade + max(0, event.samples - self.samples),
            recent_seconds=self.recent_seconds * fade + seconds,
            weight=event.value_samples,
            values={**self.values, **{name: as_number(value) for name, value in event.values.items()}},
            bytes_sent=event.bytes_sent,
            bytes_shared=event.bytes_shared,
        )

    def plus(self, later: WorkerState) -> WorkerState:
        """Add what the worker with the same number did in a later go of the job."""
        return replace(
            later,
            samples=self.samples + later.samples,
            seconds=self.seconds + later.seconds,
            shares=self.shares.plus(later.shares),
            bytes_sent=self.bytes_sent + later.bytes_sent,
            bytes_shared=self.bytes_shared + later.bytes_shared,
        )


@dataclass(frozen=True)
class LoopState:
    """The loop over data that runs now."""

    number: int  # of its call in the script; all epochs of a nested loop have one number
    epochs: int
    steps: int | None  # of the whole loop; None: unknown
    first_step: int  # applied steps when it began
    timed_from: int  # applied steps at `timed`: more than `first_step` where the job was resumed within the loop
    timed: float  # time from which its pace is measured
    batch: int  # samples of a step over all workers
    is_limited: bool  # the script set the number of steps, which does not depend on the batch

    def resized(self, batch: int, done: int) -> LoopState:
        """The loop with another batch, which changes the number of steps that are left."""
        if self.steps is None or self.is_limited or batch <= 0 or self.batch <= 0:
            return replace(self, batch=batch)
        left = max(0, self.steps - done)
        return replace(self, steps=done + math.ceil(left * self.batch / batch), batch=batch)


@dataclass(frozen=True)
class Board:
    """Everything the displays draw. `apply` returns the next one."""

    workers: Mapping[int, WorkerState] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()  # all workers that have joined so far
    members: frozenset[int] = frozenset()  # of the present generation
    places: Mapping[int, str] = field(
        default_factory=dict
    )  # by worker: its node, or its host where no engine names one
    most: int = 0  # members of the largest generation so far
    gone: Mapping[int, float] = field(default_factory=dict)  # by worker: when it died, left or was expelled
    broken_by_loss: frozenset[int] = frozenset()  # generations that lost a member
    waiting: events.Waiting | None = None  # there are too few workers now
    coordinator_back: float = -math.inf  # when a new process took the coordinator's place
    applied: int = 0  # steps
    loop: LoopState | None = None
    epoch: int = 0  # counts from 0
    began: float = 0.0  # time of the job's start
    now: float = 0.0  # time of the last event
    evaluated: events.Evaluated | None = None  # the last one
    generation: int = 0
    restored: int = 0  # the generation that last began again from a checkpoint; what earlier ones applied is void
    # Void steps, each as its first report told it.
    voided: Mapping[Void, events.StepVoided] = field(default_factory=dict)
    redone: int = 0  # steps done again: void tries, and steps that were taken back
    taken_back: int = 0  # of `redone`, steps that had been applied
    resumed: events.Resumed | None = None
    last_checkpoint: str = ""  # name of the checkpoint that the job's end waits for
    lost: frozenset[str] = frozenset()  # names of checkpoints that could not be written whole
    told: Mapping[type[events.Event], float] = field(default_factory=dict)  # by kind: time of the last notice
    doubts: frozenset[str] = frozenset()  # texts of warnings about the script
    servers: Servers = field(default_factory=Servers)
    ended: events.JobEnded | None = None

    @property
    def step(self) -> int:
        """Applied steps, as far as any worker has reported."""
        return max(self.first_step, self.applied)

    @property
    def first_step(self) -> int:
        """Applied steps when the job started: not 0 where it was resumed."""
        return 0 if self.resumed is None else self.resumed.step

    @property
    def done(self) -> int:
        """Applied steps of the present loop."""
        return max(0, self.step - self.loop.first_step) if self.loop else self.step

    @property
    def present(self) -> list[WorkerState]:
        """Members of the present generation that have reported; all workers where none is known."""
        states = [state for _, state in sorted(self.workers.items())]
        return [state for state in states if state.worker in self.members] if self.members else states

    @property
    def machines(self) -> frozenset[str]:
        """Where the members of the present generation are."""
        return frozenset(self.places[worker] for worker in self.members if worker in self.places)

    @property
    def in_sight(self) -> list[int]:
        """Workers to show, by number: those that are here and those that have just gone."""
        known = sorted(self.joined | self.members | set(self.workers))
        return [worker for worker in known if self.now - self.gone.get(worker, math.inf) < LINGER]

    @property
    def values(self) -> dict[str, float]:
        """Last logged values: means over the workers that logged them, weighted by samples."""
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        for state in self.present or self.workers.values():  # where all members are new, of all workers
            for name, value in state.values.items():
                weight = max(state.weight, 1)  # a worker without recent samples still counts
                sums[name] = sums.get(name, 0.0) + weight * value
                weights[name] = weights.get(name, 0.0) + weight
        return {name: sums[name] / weights[name] for name in sums}

    @property
    def samples_per_second(self) -> float:
        return sum(state.samples_per_second for state in self.present)

    @property
    def mean_samples_per_second(self) -> float:
        """Samples per second over all the time inside loops."""
        return mean_rate(self.workers, self.most)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left in the present loop, by its own pace so far. None: unknown, or not yet known."""
        if self.loop is None or self.loop.steps is None or self.now <= self.loop.timed:
            return None
        timed_steps = self.step - self.loop.timed_from
        if timed_steps <= 0:
            return None
        return (self.now - self.loop.timed) / timed_steps * max(0, self.loop.steps - self.done)

    def is_calm(self, event: events.Event, time: float) -> bool:
        """Whether to tell an event of this kind: not soon after another one, unless the script has marked this
        checkpoint or the job's end waits for it.
        """
        if isinstance(event, events.CheckpointPublished) and (event.mark or event.checkpoint == self.last_checkpoint):
            return True
        return time - self.told.get(type(event), -math.inf) >= CALM

    def apply(self, event: events.Event, time: float) -> Board:
        if isinstance(event, events.JobStarted):  # a job that is resumed goes on in the same record
            return Board(began=time, now=time)
        board = replace(self, now=max(self.now, time), servers=self.servers.apply(event, time))
        if isinstance(event, CALM_KINDS) and self.is_calm(event, time):
            board = replace(board, told={**self.told, type(event): time})
        return board._after(event)

    def _after(self, event: events.Event) -> Board:
        match event:
            case events.LoopStarted():
                return replace(self, loop=self._loop_of(event), epoch=event.first_epoch)
            case events.BatchChosen():
                return replace(self, loop=self.loop and self.loop.resized(event.global_batch, self.done))
            case events.StepsApplied():
                known = self.workers.get(event.worker, WorkerState(event.worker))
                workers = {**self.workers, event.worker: known.after(event)}
                board = replace(self, workers=workers, joined=self.joined | {event.worker})
                if event.generation < self.restored:  # its steps were taken back, or there were none
                    return board
                return replace(board, applied=max(self.applied, event.step), epoch=event.epoch)
            case events.StepVoided():
                return replace(self, voided={void_of(event): event, **self.voided})
            case events.ProgressResumed():
                return self._resumed(event)
            case events.Evaluated():
                return replace(self, evaluated=event)
            case events.CheckpointStarted() if event.is_last:
                return replace(self, last_checkpoint=event.checkpoint)
            case events.CheckpointLost():
                return replace(self, lost=self.lost | {event.checkpoint})
            case events.Resumed():
                loop = self.loop and replace(self.loop, timed_from=event.step, timed=self.now)
                # Only the first resume of a go says where the go began; later ones follow the loss of all workers.
                resumed = event if self.applied == 0 else self.resumed
                return replace(self, resumed=resumed, applied=event.step, restored=self.generation, loop=loop)
            case events.JobEnded():
                return replace(self, ended=event)
            case _:
                return self._after_members(event)

    def _after_members(self, event: events.Event) -> Board:
        match event:
            case events.WorkerJoined():
                here = {worker: time for worker, time in self.gone.items() if worker != event.worker}
                places = {**self.places, event.worker: event.host}
                return replace(self, joined=self.joined | {event.worker}, gone=here, places=places)
            case events.WorkerEquipped() if event.node:
                return replace(self, places={**self.places, event.worker: event.node})
            case events.GenerationFormed():
                return self._formed(event)
            case events.WorkerDied() | events.WorkerExpelled() | events.WorkerFailed() | events.WorkerLeft():
                lost = {self.generation} if event.worker in self.members else set()
                return replace(
                    self, gone={event.worker: self.now, **self.gone}, broken_by_loss=self.broken_by_loss | lost
                )
            case events.Waiting():
                return replace(self, waiting=event)
            case events.CoordinatorReturned():
                return replace(self, coordinator_back=self.now)
            case events.ScriptDoubtful():
                return replace(self, doubts=self.doubts | {event.text})
            case _:
                return self

    def _formed(self, event: events.GenerationFormed) -> Board:
        members = frozenset(event.workers)
        left_out = dict.fromkeys(self.members - members, self.now)
        gone = {worker: time for worker, time in {**left_out, **self.gone}.items() if worker not in members}
        most = max(self.most, len(members))
        return replace(self, generation=event.generation, members=members, gone=gone, most=most, waiting=None)

    def _resumed(self, event: events.ProgressResumed) -> Board:
        redone, taken_back = self.redone + event.redone, self.taken_back + event.taken_back
        board = replace(self, waiting=None, redone=redone, taken_back=taken_back)
        if not event.taken_back or self.restored >= event.generation:
            return board
        # No event says where the job begins again: at the top of the script, or from a state one step behind.
        loop = self.loop and replace(self.loop, timed_from=event.step, timed=self.now)
        since = [state.step for state in self.workers.values() if state.generation >= event.generation]
        return replace(board, applied=max(event.step, *since, 0), restored=event.generation, loop=loop)

    def _loop_of(self, event: events.LoopStarted) -> LoopState:
        steps = None if event.steps_per_epoch is None else event.steps_per_epoch * event.epochs
        if event.steps is not None:
            steps = event.steps if steps is None else min(steps, event.steps)
        number = event.loop - event.first_epoch
        is_same = self.loop is not None and self.loop.number == number
        if self.loop is not None and (event.first_epoch > 0 or is_same):
            # The next epoch of a nested loop, or all workers are new and begin again in the middle of it.
            return replace(
                self.loop, epochs=event.epochs, steps=steps if event.end is None else event.end - self.loop.first_step
            )
        # The script's first loop counts from the job's start, also where the job was resumed in the middle of it.
        is_first = self.loop is None and number <= 1
        first_step = 0 if is_first else self.step
        if event.end is not None:
            steps = event.end - first_step
        return LoopState(
            number=number,
            epochs=event.epochs,
            steps=steps,
            first_step=first_step,
            timed_from=self.step,
            timed=self.now,
            batch=event.global_batch,
            is_limited=event.steps is not None,
        )


def mean_rate(workers: Mapping[int, WorkerState], most: int) -> float:
    """Samples per second inside loops, of all workers there ever were; at most `most` of them at a time.

    The time is that of the worker that was there longest or, if all were replaced, the mean over the `most` places.
    """
    longest = max((state.seconds for state in workers.values()), default=0.0)
    places = sum(state.seconds for state in workers.values()) / max(1, most or len(workers))
    seconds = max(longest, places)
    return sum(state.samples for state in workers.values()) / seconds if seconds > 0 else 0.0
