"""One worker as the membership core knows it: what it said last, and what speaks for its death.

Plain state and pure questions about it. Not here: what follows from the answers (`deaths`, `core`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.events import WorkerDied
from shoal.membership import reasons
from shoal.values import Member
from shoal.wire.messages import Join


@dataclass(slots=True)
class Worker:
    """Facts about one joined worker. Times are in seconds by the clock of `MembershipCore.handle`."""

    join: Join
    client: int | None  # None once its connection is closed
    heard: float  # when its last message came
    step: int = 0
    operation: str = "start-up"
    done: bool = False  # it said Leave or Failed: whatever happens to its connection now is no death
    suspected: float | None = None  # when the first sign of its death was seen
    cut_off: str = ""  # why this side closed the connection
    exit_code: int | None = None  # from the launcher
    silent: float | None = None  # for how long it had not been heard when that was too long

    @property
    def number(self) -> int:
        return self.join.worker

    @property
    def name(self) -> str:
        return f"worker {self.number} (process {self.join.process} on {self.join.host})"

    @property
    def is_suspect(self) -> bool:
        return self.suspected is not None and not self.done

    @property
    def is_active(self) -> bool:
        """It takes part, as far as anybody knows."""
        return self.suspected is None and not self.done

    @property
    def may_speak(self) -> bool:
        """It may have something to say before the job is closed."""
        return self.client is not None and self.silent is None and not self.done

    def as_member(self, rank: int) -> Member:
        return Member(
            rank=rank,
            worker=self.number,
            host=self.join.host,
            process=self.join.process,
            address=self.join.address,
        )

    def suspect(self, now: float) -> None:
        if self.suspected is None and not self.done:
            self.suspected = now

    def check_heartbeat(self, now: float, limit: float) -> None:
        if self.client is not None and not self.done and now - self.heard > limit:
            self.silent = now - self.heard
            self.suspect(now)

    @property
    def how(self) -> str:
        """How it died, in the most telling words that are known."""
        if self.exit_code is not None:
            return reasons.how_it_exited(self.exit_code)
        if self.silent is not None:
            return f"was silent for {self.silent:.1f} s"
        if self.cut_off:
            return f"was cut off ({self.cut_off})"
        return "closed its connection without leaving"

    @property
    def hint(self) -> str:
        if self.exit_code is None and self.silent is not None:
            return "; if it was only busy, raise --heartbeat-limit"
        return reasons.hint_for(self.exit_code)

    def death(self, step: int, operation: str) -> WorkerDied:
        """What happened to it, and in which step and operation."""
        return WorkerDied(
            worker=self.number,
            host=self.join.host,
            process=self.join.process,
            step=step,
            operation=operation,
            reason=f"{self.name} {self.how} in step {step}, during {operation}",
        )
