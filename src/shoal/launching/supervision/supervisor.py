"""What the launcher does about exits, signals and the coordinator's messages: pure, facts in, instructions out.

No clock, process or socket: the caller passes the time and carries out the instructions. Decides about replacing
workers and the coordinator, about stopping, and about the end. Not here: whether a death ends the job, which the
coordinator decides, and when a place is filled (`places`).
"""

from __future__ import annotations

import math
import signal
from collections import deque

from shoal.engines.engine import describe_exit
from shoal.errors import Interrupted, ScriptFailed, ServersLost, ShoalError, TermsDiffer, WorkerLost
from shoal.events import (
    CheckpointLost,
    CheckpointPublished,
    CheckpointStarted,
    Event,
    StepsApplied,
    StopAgreed,
    StopRequested,
    StorageFailed,
    StorageRestored,
    Waiting,
    WorkerDied,
    WorkerFailed,
    WorkerJoined,
    WorkerLeft,
)
from shoal.launching import texts
from shoal.launching.supervision.orders import (
    AskForNumber,
    AskToStop,
    CoordinatorBack,
    CoordinatorExited,
    Fact,
    FinishJob,
    Instruction,
    InterruptWorkers,
    KillCoordinator,
    MachinesGone,
    MachinesLeaving,
    RestartCoordinator,
    Say,
    ServersFailed,
    Signalled,
    StartWorker,
    TellExit,
    WorkerExited,
)
from shoal.launching.supervision.places import WorkerPlaces
from shoal.wire.messages import Ended, Enlisted

CLEAN_STOP = 10.0  # seconds that a job may take to stop after Ctrl-C, and after its checkpoint
SAVING_STOP = 600.0  # seconds from Ctrl-C on that it may take with a checkpoint
ECHO = 2.0  # seconds that the coordinator may take to confirm a stop: only then is it known which workers have joined
SOFT_STOP = 0.5  # seconds between SIGTERM and SIGKILL
LAST_WORD = 2.0  # seconds that the coordinator may take to end a job whose processes are all gone
SAVING_WORD = 32.0  # the same while a checkpoint is open: the coordinator waits 30 s for a publication
DISK_WORD = 15.0  # the same while it cannot write decisions: the coordinator waits 10 s for the disk
ANSWER = 40.0  # seconds that it may take to give a number; the end of a job, with a publication, may come first
RESTARTS = 10  # of the coordinator, within
RESTARTS_WITHIN = 60.0  # seconds


class Supervisor:
    """Decides. One instance per job; after `FinishJob` nothing more comes out."""

    def __init__(self, workers: int, max_failures: int = 3) -> None:
        self._places = WorkerPlaces(workers, max_failures)
        self._codes: dict[int, int] = {}  # exit codes by worker
        self._told: dict[int, TellExit] = {}  # by worker: what the coordinator must be told of
        self._joined: set[int] = set()
        self._in_job: set[int] = set()  # joined, and neither left nor lost
        self._own = set(range(workers))  # started here; others may come from elsewhere
        self._died: int | None = None  # the last worker that the coordinator declared dead
        self._ended: Ended | None = None
        self._is_connected = False  # the coordinator answers
        self._waits_for_disk = False  # the coordinator waits for a disk and can decide nothing meanwhile
        self._restarts: deque[float] = deque(maxlen=RESTARTS)  # when the coordinator was started again
        self._saving: set[str] = set()  # checkpoints that were started and are neither published nor lost
        self._stopping: signal.Signals | None = None  # the signal that asked for a stop
        self._stop_limit = math.inf  # latest end of any stop, even one that writes a checkpoint
        self._stop_by = math.inf  # latest end of this stop
        self._word_by = math.inf  # until when the coordinator may end the job by itself
        self._is_closing = False  # the workers stop by themselves
        self._interrupted_workers = False
        # While stopping: from when on to assume that no worker has joined; None: it is known whether one has.
        self._echo_by: float | None = None
        self._insisted = False  # a second signal came
        self._warned = (
            False  # machines asked for the stop: the launcher's own SIGTERM may follow, and asks for the same
        )
        self._finished = False

    @property
    def deadline(self) -> float | None:
        """When a `TimePassed` is due at the latest."""
        due = min(self._stop_by, self._word_by, math.inf if self._echo_by is None else self._echo_by)
        if self._replaces:
            due = min(due, self._places.next_due or math.inf, self._answer_by)
        return None if due == math.inf else due

    @property
    def _answer_by(self) -> float:
        """When a coordinator that owes a number counts as hung. One that said it waits for a disk does not."""
        asked = self._places.asked_since
        return math.inf if asked is None or self._waits_for_disk else asked + ANSWER

    @property
    def is_ending(self) -> bool:
        """Whether the job ends, or is about to end, as far as the launcher knows."""
        return not self._replaces

    @property
    def has_ended(self) -> bool:
        """Whether the coordinator has said that the job ended."""
        return self._ended is not None

    def handle(self, fact: Fact, now: float) -> tuple[Instruction, ...]:
        """Take in a fact at time `now` (seconds, any origin) and say what to do."""
        if self._finished:
            return ()
        if isinstance(fact, ServersFailed):
            self._finished = True
            return (FinishJob(ServersLost.exit_code, SOFT_STOP, ServersLost.__name__, fact.text),)
        if isinstance(fact, MachinesGone):
            self._finished = True
            return (FinishJob(WorkerLost.exit_code, SOFT_STOP, WorkerLost.__name__, fact.text),)
        out = self._take_in(fact, now)
        if self._echo_by is not None and (isinstance(fact, StopRequested) or now >= self._echo_by):
            out += self._stop_gently()
        out += self._conclude(fact, now)
        self._finished = any(isinstance(instruction, FinishJob) for instruction in out)
        return tuple(out) if self._finished else (*out, *self._replace(now))

    def _take_in(self, fact: Fact, now: float) -> list[Instruction]:
        match fact:
            case WorkerExited():
                return self._exited(fact, now)
            case Enlisted() if self._replaces and (given := self._places.give(fact.worker)) is not None:
                self._own.add(given.worker)
                return [StartWorker(given.worker, given.place, given.reason)]
            case CoordinatorBack():
                return self._connected(now)
            case CoordinatorExited():
                self._is_connected = self._waits_for_disk = False
                self._word_by = math.inf
            case Ended() if self._ended is None:
                self._ended = fact
                self._saving.clear()  # unpublished checkpoints will not be published any more
                if self._stopping is not None:
                    self._stop_by = min(now + CLEAN_STOP, self._stop_limit)
            case MachinesLeaving() | Signalled():
                return self._asked_to_stop(fact, now)
            case CheckpointStarted() | CheckpointPublished() | CheckpointLost():
                return self._checkpoint(fact, now)
            case StorageFailed() | StorageRestored() if fact.holds_up:
                self._waits_for_disk = isinstance(fact, StorageFailed)
                self._places.wait_anew(now)
                self._word_by = self._word_by if self._word_by == math.inf else now + self._last_word
            case Event():
                return self._observe(fact, now)
            case _:
                pass
        return []

    def _observe(self, event: Event, now: float) -> list[Instruction]:
        """What the coordinator says about workers."""
        match event:
            case WorkerJoined():
                self._joined.add(event.worker)
                self._in_job.add(event.worker)
            case WorkerLeft():
                self._in_job.discard(event.worker)
                self._is_closing = self._is_closing or not event.is_handover
                self._places.has_left(event.worker, is_handover=event.is_handover, now=now)
            case WorkerFailed():
                self._in_job.discard(event.worker)
                if event.error == TermsDiffer.__name__ and (said := self._places.was_turned_away(event.worker)):
                    return [Say(said)]
            case WorkerDied():
                self._died = event.worker
                self._in_job.discard(event.worker)
                self._places.has_died(event.worker, now)
            case StepsApplied():
                self._places.has_stepped(event.worker)
            case StopRequested() | StopAgreed():
                self._is_closing = True
            case Waiting():
                self._is_closing = False  # the workers that were about to end the job are lost
            case _:
                pass
        return []

    def _exited(self, fact: WorkerExited, now: float) -> list[Instruction]:
        self._codes[fact.worker] = fact.code
        self._places.exited(fact.worker, fact.code, describe_exit(fact.code, fact.reason), now)
        # A worker that dies of our own SIGINT is not lost, so the coordinator need not hear of it.
        if self._ended is not None or self._interrupted_workers:
            return []
        self._told[fact.worker] = TellExit(fact.worker, fact.code, fact.reason)
        return [self._told[fact.worker]]

    def _connected(self, now: float) -> list[Instruction]:
        """Repeat what an earlier coordinator was told: it may have been lost with it."""
        self._is_connected = True
        self._places.ask_again(now)
        out: list[Instruction] = [*self._told.values()]
        if self._stopping is not None and self._ended is None:
            out.append(AskToStop(texts.STOP_WORDS[self._stopping], _code_of(self._stopping)))
            self._echo_by = None if self._echo_by is None else now + ECHO
        return out

    def _checkpoint(
        self, fact: CheckpointStarted | CheckpointPublished | CheckpointLost, now: float
    ) -> list[Instruction]:
        """A stop may take as long as a checkpoint needs, and then a moment: for the last checkpoint, or to leave."""
        if isinstance(fact, CheckpointStarted):
            self._saving.add(fact.checkpoint)
        else:
            self._saving.discard(fact.checkpoint)
        if self._word_by != math.inf:  # waiting for the coordinator to end the job
            self._word_by = now + self._last_word
        if self._stopping is None:
            return []
        self._stop_by = self._stop_limit if self._saving else min(now + CLEAN_STOP, self._stop_limit)
        is_last = isinstance(fact, CheckpointStarted) and fact.is_last
        return [Say(texts.LAST_CHECKPOINT)] if is_last else []

    def _asked_to_stop(self, fact: MachinesLeaving | Signalled, now: float) -> list[Instruction]:
        if isinstance(fact, MachinesLeaving):
            if self._stopping is not None:
                return []
            self._warned = True
            return [Say(fact.text), *self._begin_to_stop(signal.SIGTERM, now)]
        if self._stopping is None:
            return self._begin_to_stop(fact.number, now)
        if fact.number == signal.SIGTERM and self._warned:
            self._warned = False
        else:
            # A closing terminal sends several SIGHUPs and breaks the output too: these are no second request.
            self._insisted = self._insisted or fact.number in (signal.SIGINT, signal.SIGTERM)
        return []

    def _begin_to_stop(self, number: signal.Signals, now: float) -> list[Instruction]:
        self._stopping = number
        self._stop_limit = now + SAVING_STOP
        self._stop_by = self._stop_limit if self._saving else now + CLEAN_STOP
        if self._ended is not None:
            return self._stop_gently()
        asked = AskToStop(texts.STOP_WORDS[number], _code_of(number))
        if self._in_job or self._waits_for_disk:
            return [asked, *self._stop_gently()]
        # News that a worker joined may be on its way: it comes before the coordinator's answer to this stop.
        self._echo_by = now + ECHO if self._is_connected else math.inf
        return [asked]

    def _stop_gently(self) -> list[Instruction]:
        """Workers that have joined stop after a step, once they have agreed on it; others are interrupted."""
        self._echo_by = None
        if self._ended is None and self._in_job:
            if self._waits_for_disk:
                return [Say(texts.stopping_without_disk(CLEAN_STOP))]
            return [Say(texts.STOPPING_AFTER_STEP)]
        self._interrupted_workers = True
        return [InterruptWorkers(), Say(texts.STOPPING)]

    # Going on

    @property
    def _replaces(self) -> bool:
        """Whether lost workers are replaced."""
        return self._ended is None and self._stopping is None and not self._is_closing and not self._finished

    def _replace(self, now: float) -> list[Instruction]:
        if not self._replaces or not self._is_connected:
            return []
        if now >= self._answer_by:
            self._is_connected = False
            return [Say(texts.coordinator_hangs(ANSWER)), KillCoordinator()]
        return [AskForNumber()] * self._places.take_due(now)

    def _restart(self, fact: CoordinatorExited, now: float) -> list[Instruction]:
        """The coordinator is gone and had not ended the job."""
        often = len(self._restarts) == RESTARTS and now - self._restarts[0] < RESTARTS_WITHIN
        if fact.may_return and not often:
            self._restarts.append(now)
            return [RestartCoordinator()]
        text = texts.coordinator_gone(fact.how, RESTARTS + 1 if often else 0)
        return [FinishJob(ShoalError.exit_code, SOFT_STOP, ShoalError.__name__, text)]

    # The end

    def _conclude(self, fact: Fact, now: float) -> list[Instruction]:
        """Finish the job, if it is over."""
        is_empty = not self._places.running and not (self._replaces and self._places.is_filling)
        is_empty = is_empty and not (self._in_job - self._own)
        if not is_empty:
            self._word_by = math.inf
        elif self._is_connected:
            self._word_by = min(self._word_by, now + self._last_word)
        over = now >= min(self._word_by, self._stop_by)
        if self._stopping is not None:
            nothing_to_say = self._interrupted_workers and not self._saving
            all_is_said = self._ended is not None or nothing_to_say or isinstance(fact, CoordinatorExited)
            is_done = self._ended is not None and bool(self._joined) and not self._places.running & self._joined
            if self._insisted or over or is_done or (is_empty and all_is_said):
                return [self._interrupted(self._stopping)]
            if isinstance(fact, CoordinatorExited) and self._ended is None and not self._interrupted_workers:
                return self._restart(fact, now)
            return []
        if self._ended is not None and self._ended.exit_code != 0:
            return [self._failed(self._ended)]
        if isinstance(fact, CoordinatorExited) and self._ended is None:
            return self._restart(fact, now)
        if (self._ended is not None and not self._still_counts) or (is_empty and over):
            return [self._by_exit_codes()]
        return []

    @property
    def _still_counts(self) -> set[int]:
        """Workers whose scripts still run after a good end, without those that never got into the job."""
        return self._places.running & (self._places.left if self._joined else self._places.running)

    @property
    def _last_word(self) -> float:
        return SAVING_WORD if self._saving else DISK_WORD if self._waits_for_disk else LAST_WORD

    def _interrupted(self, number: signal.Signals) -> FinishJob:
        return FinishJob(_code_of(number), 0.0 if self._insisted else SOFT_STOP, text=texts.STOP_WORDS[number])

    def _failed(self, ended: Ended) -> FinishJob:
        lost = self._died if ended.error == WorkerLost.__name__ else None
        return FinishJob(ended.exit_code, SOFT_STOP, ended.error, ended.text, lost)

    def _by_exit_codes(self) -> FinishJob:
        """The job ended well; exit codes of its scripts count too, but not those of workers that were lost before."""
        counted = self._codes if self._ended is None or not self._joined else self._places.left
        is_good = self._ended is not None and bool(self._joined)
        for worker in sorted(counted):
            code = self._codes.get(worker, 0)
            # The job has its result, and its record says so: a process that is killed while it exits changes nothing.
            if code > 0 or (code < 0 and not is_good):
                error = ScriptFailed if code > 0 else WorkerLost
                text = texts.failed_after_training(worker, describe_exit(code))
                return FinishJob(error.exit_code, SOFT_STOP, error.__name__, text, worker if code < 0 else None)
        return FinishJob(0, SOFT_STOP)


def _code_of(number: signal.Signals) -> int:
    return Interrupted.exit_code if number == signal.SIGINT else 128 + number
