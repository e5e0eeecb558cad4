"""What goes into the membership core and what comes out of it: frozen inputs and instructions.

The driver of the core gives each connection a number, which it never reuses; clients are named by that number. Not
here: the bytes of messages (`wire.messages`) and decisions (`core`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.events import AnyEvent, ConnectionIntercepted
from shoal.membership.core.decisions import Decision
from shoal.membership.publisher import PublishOutcome, PublishRequest
from shoal.membership.record.storage import StorageEvent
from shoal.wire.messages import ClientMessage, CoordinatorMessage


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message from a client."""

    client: int
    message: ClientMessage


@dataclass(frozen=True, slots=True)
class Closed:
    """A client's connection ended; everything that came through it has been handed over before."""

    client: int
    reason: str = ""  # why this side closed the connection; empty when the other side did


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Comes every `core.TICK` seconds."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The coordinator itself was told to stop."""

    reason: str
    exit_code: int = 143  # of a job that stops because of this interrupt
    is_final: bool = False  # the launcher is gone, so that a stop in good order is not possible


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to `Publish` when all went well."""

    checkpoint: str
    outcome: PublishOutcome


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """The other answer to `Publish`."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """What the coordinator's process has noticed, for the record and the watchers.

    Between `StorageFailed` and `StorageRestored` of a file that holds decisions up, nobody hears what the core decides,
    so no time passes for it.
    """

    event: StorageEvent | ConnectionIntercepted


Input = Arrived | Closed | Tick | Interrupt | Published | PublishFailed | Noticed


@dataclass(frozen=True, slots=True)
class Send:
    clients: tuple[int, ...]  # all are connected
    message: CoordinatorMessage


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Write a decision to disk before any later instruction is carried out."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Write an event to the job's record and show it to the watchers."""

    event: AnyEvent
    watchers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Show a new watcher the events before its arrival."""

    client: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection once everything that was sent to it is out. Ignore whatever this client still sends."""

    client: int


@dataclass(frozen=True, slots=True)
class End:
    """The job is over and all clients have been told. Later instructions only turn newcomers away."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class Publish:
    """All parts are written: make a checkpoint of them. An input answers, whenever that is done."""

    request: PublishRequest


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Remove the files of a lost checkpoint, after earlier requests to the publisher."""

    checkpoint: str


Instruction = Send | WriteDecision | RecordEvent | CatchUp | Close | End | Publish | DiscardCheckpoint


@dataclass(frozen=True, slots=True)
class JobProgram:
    """What the job runs; a process that starts one more worker needs to know it."""

    script: str = ""
    arguments: tuple[str, ...] = ()
    servers: str = ""  # HOST:PORT of the keeper of its parameter servers
    space: str = ""  # the job's name on those servers
    digest: str = ""  # of the script's file, in hex
    joins: bool = False  # the script's source imports shoal, so its workers should join; False: not known
