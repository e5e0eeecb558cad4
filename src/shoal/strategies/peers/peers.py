"""The interface of peers: the workers this one trains with, generation after generation.

A strategy asks it for the current group; after a failure it asks for the next generation. Implementations: `solo_peers`
(one process, which does the coordinator's work too), `cluster_peers` (a coordinator and TCP), and the tests' threads
in one process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.collectives.group import Group
from shoal.errors import ExchangeFailed, ParametersLost, ShoalError
from shoal.events import Advised, AnyEvent
from shoal.strategies import texts
from shoal.terms import Made
from shoal.values import Generation, Unreached
from shoal.wire.messages import Done, ExchangeBroken, PartFailed, PartWritten, Ready


class JobOver(BaseException):
    """The job has ended while this worker's script was running. Not an Exception: scripts must not catch it."""

    def __init__(self, error: ShoalError, *, is_news: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_news = is_news  # the coordinator does not know yet


class Briefed(Exception):
    """A newcomer that waits to be let in is told of calls of the job's script that it has not seen."""

    def __init__(self, first: int, calls: tuple[Made, ...]) -> None:
        super().__init__(f"{len(calls)} calls of the job's script, from call {first + 1} on")
        self.first = first
        self.calls = calls


@dataclass(frozen=True)
class Breakage:
    """Why a group cannot be used any more, as this worker saw it."""

    step: int  # the step that was being worked on
    operation: str  # label of the collective
    reason: str
    peer: int | None  # rank that the collective was waiting for, where known
    at_end: bool = False  # the meeting at the end of a loop broke, after which a script may be done
    point: int = 0  # the number of a meeting outside loops, in program order
    is_planned: bool = False  # nothing failed: all members regroup here, as was asked for
    must_restore: bool = False  # nobody has the job's state any more: all start from the newest checkpoint
    is_total: bool = False  # all servers that had the job's state are lost

    @classmethod
    def by(cls, failure: ExchangeFailed, step: int, operation: str, *, at_end: bool = False) -> Self:
        lost = failure if isinstance(failure, ParametersLost) else None
        how = {"must_restore": lost is not None, "is_total": lost is not None and lost.is_total}
        return cls(step, operation, str(failure), failure.peer, at_end=at_end, **how)


@dataclass(frozen=True)
class Traffic:
    """Running totals over all generations."""

    bytes_sent: int = 0  # to peers, and to servers where the job has any
    idle_seconds: float = 0.0  # blocked in a collective while no byte moved
    bytes_shared: int = 0  # that parameter servers on this machine read from this worker's memory

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(
            self.bytes_sent + other.bytes_sent,
            self.idle_seconds + other.idle_seconds,
            self.bytes_shared + other.bytes_shared,
        )


class Peers(ABC):
    """This worker's connection to the job."""

    worker: int  # this worker's number in the job
    has_others = True  # there are other workers, or there may be some later
    is_new: bool  # not in a generation yet: `group` stands for the one to come, and can do nothing
    group: Group  # of the current generation
    generation: Generation
    codec: Codec = Identity()  # encodes what crosses hosts, in all generations; the residual is this worker's

    # Into the next generation: see `membership.member`

    def unreached(self) -> Unreached:
        """After a failure, and before the group is left: which of its members are missed, by worker number."""
        return Unreached()

    @abstractmethod
    def leave_group(self, reason: str) -> None:
        """Abort what is in flight and let go of the group; the other members notice."""

    @abstractmethod
    def tell(self, notice: Ready | ExchangeBroken) -> None:
        """Tell the coordinator that this worker waits for the next generation."""

    @abstractmethod
    def await_generation(self, after: int) -> Generation:
        """Block until there is a generation with a higher number. Raises JobOver where the job has ended.

        Raises Briefed where this worker is a newcomer and is told of more of the job's calls; then it must say again
        that it is ready.
        """

    @abstractmethod
    def connect(self, generation: Generation) -> None:
        """Make `group` that of a generation which this worker is in. Raises ExchangeFailed."""

    def call_made(self, index: int, made: Made) -> None:  # noqa: B027  most have no newcomers to tell
        """This worker's script has made this call, or has its result: newcomers compare their own calls with it."""

    def finish(self, notice: Done) -> Generation | None:  # noqa: ARG002  some have nobody to wait for
        """The script is done here: block until it is on all workers, and say None, or until there is a generation with
        a higher number than the notice has. Raises JobOver where the job has ended.
        """
        return None

    def reach(self, point: int) -> None:  # noqa: B027  some have nobody to tell
        """The script has come to this meeting outside loops, counted from 1: nobody need run the code before again."""

    # Wishes from outside the script, and permission to go on

    @abstractmethod
    def regroup_wish(self) -> str | None:
        """Why the members should regroup at the end of a step: somebody waits to be let in."""

    @abstractmethod
    def leave_wish(self) -> str | None:
        """Why this worker should hand its place over at the end of a step: its machine is taken away."""

    @abstractmethod
    def hold(self, *, at_end: bool = False) -> None:
        """Return at once if the coordinator was heard within the absence limit; else wait until it is heard again.

        `at_end`: a result is about to be final, so the coordinator must have been heard within the heartbeat limit.
        """

    def interruption(self) -> str | None:
        """Why the present generation is over, where the coordinator has said so already."""
        return None

    @contextmanager
    def interrupting(self, interrupt: Callable[[str], None]) -> Iterator[None]:  # noqa: ARG002  some are never interrupted
        """Inside, `interrupt` is called, from another thread, when the present generation is over.

        Raises Aborted on the way out where `interrupt` was called, even if what was waited for came all the same.
        """
        yield

    @abstractmethod
    def report(self, *events: AnyEvent) -> None:
        """Hand events to whoever records them."""

    def drop_residual(self, reason: str) -> None:
        """Drop the codec's residual: what it left out of this worker's gradients will never be sent."""
        if self.codec.state():
            self.codec.load({})
            text = texts.residual_dropped(self.codec.name, self.worker, reason)
            self.report(Advised(worker=self.worker, text=text))

    @abstractmethod
    def stop_wish(self) -> str | None:
        """Reason of a stop that was asked for from outside the script."""

    @abstractmethod
    def set_position(self, step: int, operation: str) -> None:
        """Say what this worker is doing, for the next heartbeat. Cheap."""

    @abstractmethod
    def part_done(self, message: PartWritten | PartFailed) -> None:
        """This worker's part of a checkpoint is written, or will not be. From any thread."""

    @abstractmethod
    def settlement(self, checkpoint: str, timeout: float) -> bool | None:
        """Whether a checkpoint was published, once that is known; None where it is not known within `timeout` seconds.

        False also where nobody will ever know: without a coordinator, or when the job is over.
        """

    @abstractmethod
    def traffic(self) -> Traffic:
        """Totals so far."""

    @property
    def idle_seconds(self) -> float:
        """The part of `traffic` that is asked for several times a step."""
        return self.traffic().idle_seconds

    @abstractmethod
    def close(self) -> None:
        """Let go of the group and of the coordinator."""
