"""One worker as the membership core knows it: what it said last, whether it is in the generation, what became of it.

Plain state and pure questions about it. Not here: what follows from the answers (`liveness`, `forming`, `core`).
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

    HERE = "it takes part, or may"
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
    samples: int = 0  # that its process has used in applied steps, as far as it has told
    stalled: float = 0.0  # seconds that it said it was blocked in a collective
    moved: float = 0.0  # when its step or operation last changed
    advanced: float = -math.inf  # when its step last went up in its generation
    generation: int = 0  # number of the generation that it is a member of; 0: of none
    first_generation: int = 0  # the first that it was a member of; 0: it has been in none
    is_ready: bool = False  # it waits to be let in
    seen: int | None = None  # of the job's calls, that it has compared with its own; None: it need not
    is_ahead: bool = False  # its script waits at a call that the members' scripts have not come to
    briefings: int = 0  # times that it was told of more of them
    must_ask: bool = False  # it was put out of a generation: it is let in only after it has said that it is ready
    is_awaited: bool = False  # this coordinator knows it from the ledger only; it has not come back yet
    cut_off: str = ""  # why this side closed the connection
    exit_code: int | None = None  # from whoever started it
    suspected: float | None = None  # when the first sign of its death was seen
    barred_until: float = -math.inf  # it could not reach others: not let in before
    times_left_out: int = 0  # in a row
    unreachable: tuple[int, ...] = ()  # members that it said it cannot reach, when it last said that it is ready
    is_placed: bool = True  # False: known from the ledger only, so its first heartbeat just says where it is
    is_guest: bool = False  # somebody added it to those that the launcher starts
    point: int = 0  # how far its script is known to have got outside loops, in its generation: see `values.Lost`
    is_done: bool = False  # its function has returned in its generation, and it waits for the others
    points: int = 0  # once it is done: meetings outside loops that it has passed
    why_done: str = "the script is done"  # or why it was stopped

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
        """It takes part, or could: nothing speaks against it but silence."""
        return self.client is not None and self.fate is Fate.HERE and self.exit_code is None

    @property
    def is_strange(self) -> bool:
        """Nobody knows whether it runs the job's script: somebody has added it, and its calls were not compared yet."""
        return self.is_guest and self.is_ahead

    @property
    def is_out_for_sure(self) -> bool:
        """It can do nothing any more in the last generation that it was in."""
        return self.exit_code is not None or self.is_ready or self.fate not in (Fate.HERE, Fate.DEAD)

    @property
    def may_speak(self) -> bool:
        """It may have something to say before the job is closed."""
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
        """It is no member any more. What it holds is not the job's state from now on."""
        self.generation = 0
        self.is_ready = self.is_done = False
        self.must_ask = True
        self.suspected = None

    def bar(self, now: float) -> float:
        """It could not reach others: it is not let in for so many seconds."""
        seconds: float = min(BARRED_MOST, BARRED_FIRST * 2**self.times_left_out)
        self.times_left_out += 1
        self.barred_until = now + seconds
        return seconds

    def put_out_before(self) -> None:
        """An earlier coordinator knew it, and it is in no generation: it may hold the state of one that it was in."""
        self.first_generation = 1
        self.must_ask = True

    def suspect(self, now: float) -> None:
        if self.suspected is None:
            self.suspected = now

    def how(self, now: float) -> str:
        """How it died, in the most telling words that are known."""
        if self.exit_code is not None:
            return reasons.how_it_exited(self.exit_code)
        if self.cut_off:
            return f"was cut off ({self.cut_off})"
        if self.client is not None:
            return f"was silent for {now - self.heard:.1f} s"
        if self.is_awaited:
            return "did not come back to the new coordinator"
        return "closed its connection without leaving"

    @property
    def hint(self) -> str:
        if self.exit_code is None and self.client is not None:
            return "; if it was only busy, raise --heartbeat-limit"
        return reasons.hint_for(self.exit_code)

    def death(self, step: int, operation: str, now: float) -> WorkerDied:
        """What happened to it, and in which step and operation."""
        return WorkerDied(
            worker=self.number,
            host=self.join.host,
            process=self.join.process,
            step=step,
            operation=operation,
            reason=f"{self.name} {self.how(now)} in step {step}, during {operation}",
        )


def remembered(member: Member, generation: int, now: float) -> Worker:
    """A member that the ledger knows, before it has come back."""
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
    worker.first_generation = 1  # nothing is known of it: it may have been in all of them
    return worker


def forget_ended(workers: dict[int, Worker], members: Container[int]) -> None:
    """Workers whose processes have ended never come back; a job may have thousands of them in its life."""
    for number, worker in tuple(workers.items()):
        has_ended = worker.exit_code is not None and worker.client is None
        if has_ended and worker.fate is not Fate.FINISHED and number not in members:
            del workers[number]
