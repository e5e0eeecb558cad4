"""One worker as the membership core knows it: its last report, its place in the generation, its fate.

Plain state and pure questions about that state. Not here: decisions (`liveness`, `forming`, `core`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Container
from dataclasses import dataclass

from shoal.events import WorkerDied
from shoal.membership.core import reasons
from shoal.values import Member
from shoal.wire.messages import PROTOCOL_VERSION, Heartbeat, Join

BARRED_FIRST = 30.0  # seconds before a worker that could not reach others is let in again; doubles each time
BARRED_MOST = 600.0


class Fate(enum.Enum):
    """What became of a worker."""

    HERE = "it takes part, or may take part"
    RELEASED = "all workers are done, and its script runs on to its last line"
    FINISHED = "its script has come to its last line"
    HANDED_OVER = "it left before its script was done, and the job goes on"
    FAILED = "it said that it cannot go on"
    DEAD = "its process ended, or is taken to have ended"


@dataclass(slots=True, eq=False)
class Worker:
    """Facts about one joined worker. Times are in seconds by the clock of `MembershipCore.handle`."""

    join: Join
    client: int | None  # None while its connection is closed
    heard: float  # when its last message came, or its process was seen at work
    fate: Fate = Fate.HERE
    step: int = 0
    operation: str = "start-up"
    samples: int = 0  # used in applied steps, by the worker's last report
    stalled: float = 0.0  # seconds that the worker has been blocked in a collective, by its last heartbeat
    moved: float = 0.0  # when its step or operation last changed
    advanced: float = -math.inf  # when its step last went up in its generation
    generation: int = 0  # number of the generation that the worker is a member of; 0: of none
    first_generation: int = 0  # number of the first generation that the worker was in; 0: it has been in none
    is_ready: bool = False  # waits to be let in
    seen: int | None = None  # how many of the job's calls the worker has compared with its own; None: it need not
    is_ahead: bool = False  # its script waits at a call that the members' scripts have not come to
    briefings: int = 0  # how often the worker was told of more calls
    must_ask: bool = False  # was put out of a generation: let it in only after it says that it is ready
    is_awaited: bool = False  # known from recorded decisions only; has not come back to this coordinator yet
    cut_off: str = ""  # why this side closed the connection
    exit_code: int | None = None  # as reported by the process that started the worker
    loss: str = ""  # what took the process along, such as the loss of its node
    suspected: float | None = None  # when the first sign of its death was seen
    barred_until: float = -math.inf  # could not reach others: do not let it in before this time
    times_left_out: int = 0  # in a row, because it could not reach others
    unreachable: tuple[int, ...] = ()  # members that the worker cannot reach, by its last `Ready`
    is_placed: bool = (
        True  # False: known from recorded decisions only, so a first heartbeat with a higher step is no advance
    )
    is_guest: bool = False  # was added by hand, beside the workers that the launcher starts
    point: int = 0  # how far its script has got outside loops in its generation, as far as known: see `values.Lost`
    is_done: bool = False  # its function has returned in its generation, and the worker waits for the others
    points: int = 0  # of a worker that is done: meetings outside loops that it has passed
    why_done: str = "the script is done"  # or why the script was stopped

    @property
    def number(self) -> int:
        return self.join.worker

    @property
    def name(self) -> str:
        return f"worker {self.number} (process {self.join.process} on {self.join.host})"

    @property
    def is_here(self) -> bool:
        return self.fate is Fate.HERE

    @property
    def is_connected(self) -> bool:
        """The worker takes part, or could, unless it turns out to be silent."""
        return self.client is not None and self.fate is Fate.HERE and self.exit_code is None

    @property
    def is_strange(self) -> bool:
        """A guest whose calls were not compared yet: it may run another script than the job's."""
        return self.is_guest and self.is_ahead

    @property
    def is_out_for_sure(self) -> bool:
        """The worker certainly does nothing more in the last generation that it was in."""
        return self.exit_code is not None or self.is_ready or self.fate not in (Fate.HERE, Fate.DEAD)

    @property
    def may_speak(self) -> bool:
        """The worker may still have something to report before the record is closed."""
        is_at_work = self.fate is Fate.RELEASED or (self.fate is Fate.HERE and not self.must_ask)
        return self.client is not None and is_at_work

    def as_member(self, rank: int, share: int) -> Member:
        return Member(
            rank=rank,
            worker=self.number,
            host=self.join.host,
            process=self.join.process,
            address=self.join.address,
            share=share,
        )

    def take_in(self, beat: Heartbeat, now: float) -> None:
        if beat.step > self.step and beat.generation == self.generation != 0 and self.is_placed:
            self.advanced = now
            self.times_left_out = 0
        if beat.generation == self.generation:
            self.point = beat.point
        self.is_placed = True
        if (beat.step, beat.operation) != (self.step, self.operation):
            self.step, self.operation, self.moved = beat.step, beat.operation, now
        self.stalled = beat.stalled

    def come_back(self, client: int, now: float) -> None:
        self.client, self.heard, self.cut_off, self.is_awaited = client, now, "", False
        self.fate = Fate.HERE if self.fate is Fate.DEAD else self.fate

    def enter(self, generation: int, now: float) -> None:
        self.generation = generation
        self.first_generation = self.first_generation or generation
        self.is_ready = self.must_ask = self.is_ahead = self.is_done = False
        self.seen, self.briefings = None, 0
        self.unreachable = ()
        self.point = 0
        self.suspected = None
        self.moved, self.advanced, self.stalled = now, -math.inf, 0.0

    def put_out(self) -> None:
        """The worker is a member no longer, and what it holds no longer counts as the job's state."""
        self.generation = 0
        self.is_ready = self.is_done = False
        self.must_ask = True
        self.suspected = None

    def bar(self, now: float) -> float:
        """Do not let the worker in for a while, since it could not reach others. Returns the seconds."""
        seconds: float = min(BARRED_MOST, BARRED_FIRST * 2**self.times_left_out)
        self.times_left_out += 1
        self.barred_until = now + seconds
        return seconds

    def put_out_before(self) -> None:
        """An earlier coordinator put this worker out: it may still hold the state of an old generation."""
        self.first_generation = 1
        self.must_ask = True

    def suspect(self, now: float) -> None:
        if self.suspected is None:
            self.suspected = now

    def how(self, now: float) -> str:
        """How the worker died, as precisely as is known."""
        if self.exit_code is not None:
            return reasons.how_it_exited(self.exit_code, self.loss)
        if self.cut_off:
            return reasons.cut_off(self.cut_off)
        if self.client is not None:
            return reasons.silent(now - self.heard)
        if self.is_awaited:
            return reasons.NOT_BACK
        return reasons.CLOSED

    @property
    def hint(self) -> str:
        if self.exit_code is None and self.client is not None:
            return reasons.IF_BUSY
        return "" if self.loss else reasons.hint_for(self.exit_code)

    def death(self, step: int, operation: str, now: float) -> WorkerDied:
        """How the worker died, and in which step and operation."""
        return WorkerDied(
            worker=self.number,
            host=self.join.host,
            process=self.join.process,
            step=step,
            operation=operation,
            reason=f"{self.name} {self.how(now)} in step {step}, during {operation}",
        )


def remembered(member: Member, generation: int, now: float) -> Worker:
    """A member known from recorded decisions, before it has come back."""
    join = Join(
        version=PROTOCOL_VERSION,
        worker=member.worker,
        host=member.host,
        process=member.process,
        address=member.address,
        generation=generation,
    )
    worker = Worker(join=join, client=None, heard=now, is_awaited=True, is_placed=False)
    worker.enter(generation, now)
    worker.first_generation = 1  # no decision says so; the worker may have been in all generations
    return worker


def forget_ended(workers: dict[int, Worker], members: Container[int]) -> None:
    """Workers whose processes have ended never come back; a job may have thousands of them in its life."""
    for number, worker in tuple(workers.items()):
        has_ended = worker.exit_code is not None and worker.client is None
        if has_ended and worker.fate is not Fate.FINISHED and number not in members:
            del workers[number]
