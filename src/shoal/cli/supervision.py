"""What the launcher does about exits, signals and the coordinator's words: pure, facts in, instructions out.

No clock, process or socket: the caller says what time it is and carries out what comes back. Not here: whether a death
ends the job, which the coordinator decides.
"""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass

from shoal.engines.engine import describe_exit
from shoal.errors import Interrupted, ScriptFailed, ShoalError, WorkerLost
from shoal.events import (
    CheckpointLost,
    CheckpointPublished,
    CheckpointStarted,
    Event,
    WorkerDied,
    WorkerJoined,
    WorkerLeft,
)
from shoal.wire.messages import Ended

CLEAN_STOP = 10.0  # seconds that a job may take to stop after Ctrl-C, and after its checkpoint
SAVING_STOP = 600.0  # seconds from Ctrl-C on that it may take with a checkpoint
SOFT_STOP = 0.5  # seconds between SIGTERM and SIGKILL
LAST_WORD = 2.0  # seconds that the coordinator may take to end a job whose processes are all gone
SAVING_WORD = 32.0  # the same while a checkpoint is open: it waits 30 s for a publication
STOP_WORDS = {
    signal.SIGINT: "interrupted by Ctrl-C",
    signal.SIGTERM: "stopped by SIGTERM",
    signal.SIGHUP: "stopped because the terminal closed",
    signal.SIGPIPE: "stopped because nobody reads its output any more",
}


# Facts


@dataclass(frozen=True)
class WorkerExited:
    worker: int
    code: int


@dataclass(frozen=True)
class CoordinatorExited:
    """Its process ended, or its connection broke, and all it had said was handed over before."""

    how: str  # "was killed by SIGKILL"


@dataclass(frozen=True)
class Signalled:
    number: signal.Signals


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Fact = WorkerExited | CoordinatorExited | Signalled | Tick | Ended | Event


# Instructions


@dataclass(frozen=True)
class TellExit:
    """Report a worker's exit to the coordinator."""

    worker: int
    code: int


@dataclass(frozen=True)
class AskToStop:
    """Ask the coordinator for an agreed stop."""

    reason: str
    exit_code: int  # of a job that ends by it


@dataclass(frozen=True)
class InterruptWorkers:
    """SIGINT to every worker that runs."""


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Finish:
    """The job is over: stop what still runs, then tell the user."""

    exit_code: int
    grace: float  # seconds between SIGTERM and SIGKILL, 0 for SIGKILL at once
    error: str = ""  # class name from `errors`; empty when all is well or the user wanted the end
    text: str = ""
    lost_worker: int | None = None  # whose last lines belong to the message


Instruction = TellExit | AskToStop | InterruptWorkers | Say | Finish


class Supervisor:
    """Decides. One instance per job; after `Finish` nothing more comes out."""

    def __init__(self, workers: int) -> None:
        self._running = set(range(workers))
        self._codes: dict[int, int] = {}
        self._in_job: set[int] = set()  # joined and not left
        self._died: int | None = None  # the first worker that the coordinator declared dead
        self._ended: Ended | None = None
        self._saving: set[str] = set()  # checkpoints that were started and are neither published nor lost
        self._stopping: signal.Signals | None = None  # the signal that asked for a stop
        self._stop_limit = math.inf  # when a stop has taken too long, whatever it is about
        self._interrupted_workers = False
        self._insisted = False  # a second signal came
        self._unanswered = False  # a worker ended badly, and the coordinator has not said what becomes of the job
        self._deadline: float | None = None
        self._finished = False

    @property
    def deadline(self) -> float | None:
        """When a `Tick` is due at the latest."""
        return self._deadline

    def handle(self, fact: Fact, now: float) -> tuple[Instruction, ...]:
        """Take in a fact at time `now` (seconds, any origin) and say what to do."""
        if self._finished:
            return ()
        out = self._take_in(fact, now)
        out += self._conclude(fact, now)
        self._finished = any(isinstance(instruction, Finish) for instruction in out)
        return tuple(out)

    def _take_in(self, fact: Fact, now: float) -> list[Instruction]:
        match fact:
            case WorkerExited():
                self._running.discard(fact.worker)
                self._codes[fact.worker] = fact.code
                # Who dies of our own SIGINT was not lost, so the coordinator need not hear of it.
                told = self._ended is None and not self._interrupted_workers
                if told and fact.code != 0:
                    self._unanswered = True
                    self._deadline = min(self._deadline or math.inf, now + self._last_word)
                return [TellExit(fact.worker, fact.code)] if told else []
            case WorkerJoined():
                self._in_job.add(fact.worker)
            case WorkerLeft():
                self._in_job.discard(fact.worker)
            case CheckpointStarted() | CheckpointPublished() | CheckpointLost():
                return self._checkpoint(fact, now)
            case WorkerDied() if self._died is None:
                self._died = fact.worker
            case Ended() if self._ended is None:
                self._ended = fact
            case Signalled() if self._stopping is not None:
                # A closing terminal sends several SIGHUPs and breaks the output too: nobody insists then.
                self._insisted = self._insisted or fact.number in (signal.SIGINT, signal.SIGTERM)
            case Signalled():
                return self._begin_to_stop(fact.number, now)
            case _:
                pass
        return []

    def _checkpoint(
        self, fact: CheckpointStarted | CheckpointPublished | CheckpointLost, now: float
    ) -> list[Instruction]:
        """A stop takes the time that a checkpoint needs, and then a moment: for the last one, or to leave."""
        is_start = isinstance(fact, CheckpointStarted)
        if is_start:
            self._saving.add(fact.checkpoint)
        else:
            self._saving.discard(fact.checkpoint)
        if self._stopping is None:
            if self._deadline is not None:  # the coordinator's last word is waited for
                self._deadline = now + self._last_word
            return []
        self._deadline = self._stop_limit if self._saving else min(now + CLEAN_STOP, self._stop_limit)
        is_last = isinstance(fact, CheckpointStarted) and fact.is_last
        return [Say("writing the last checkpoint (Ctrl-C again to stop now)")] if is_last else []

    def _begin_to_stop(self, number: signal.Signals, now: float) -> list[Instruction]:
        self._stopping = number
        self._stop_limit = now + SAVING_STOP
        self._deadline = self._stop_limit if self._saving else now + CLEAN_STOP
        asked: list[Instruction] = [AskToStop(STOP_WORDS[number], _code_of(number))] if self._ended is None else []
        if asked and self._in_job:
            return [*asked, Say("stopping after this step (Ctrl-C again to stop now)")]
        self._interrupted_workers = True
        return [*asked, InterruptWorkers(), Say("stopping (Ctrl-C again to stop now)")]

    def _conclude(self, fact: Fact, now: float) -> list[Instruction]:
        """The end, if what is known amounts to it."""
        if not self._running:
            self._deadline = min(self._deadline or math.inf, now + self._last_word)
        over = self._deadline is not None and now >= self._deadline
        nothing_to_say = self._interrupted_workers and not self._saving
        all_is_said = self._ended is not None or nothing_to_say or isinstance(fact, CoordinatorExited)
        if self._stopping is not None:
            if self._insisted or over or (not self._running and all_is_said):
                return [self._interrupted(self._stopping)]
            return []
        if self._ended is not None and self._ended.exit_code != 0:
            return [self._failed(self._ended)]
        if isinstance(fact, CoordinatorExited) and self._ended is None:
            text = f"the coordinator process {fact.how} and the job cannot go on without it; all workers were stopped"
            return [Finish(ShoalError.exit_code, SOFT_STOP, ShoalError.__name__, text)]
        if not self._running and (self._ended is not None or over):
            return [self._by_exit_codes()]
        if self._unanswered and over:  # the coordinator does not answer: what the launcher knows must do
            return [self._by_exit_codes()]
        return []

    @property
    def _last_word(self) -> float:
        return SAVING_WORD if self._saving else LAST_WORD

    def _interrupted(self, number: signal.Signals) -> Finish:
        return Finish(_code_of(number), 0.0 if self._insisted else SOFT_STOP, text=STOP_WORDS[number])

    def _failed(self, ended: Ended) -> Finish:
        lost = self._died if ended.error == WorkerLost.__name__ else None
        return Finish(ended.exit_code, SOFT_STOP, ended.error, ended.text, lost)

    def _by_exit_codes(self) -> Finish:
        """All is well with the job; what the scripts did afterwards counts too."""
        for worker, code in sorted(self._codes.items()):
            if code != 0:
                error = ScriptFailed if code > 0 else WorkerLost
                text = f"worker {worker} {describe_exit(code)} after the training was over"
                return Finish(error.exit_code, SOFT_STOP, error.__name__, text, worker if code < 0 else None)
        return Finish(0, SOFT_STOP)


def _code_of(number: signal.Signals) -> int:
    return Interrupted.exit_code if number == signal.SIGINT else 128 + number
