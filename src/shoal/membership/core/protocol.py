"""What goes into the membership core and what comes out of it: frozen inputs and instructions.

Clients are named by a number that whoever drives the core gives each connection and never reuses. Not here: the bytes
of messages (`wire.messages`) and what is decided (`core`).
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
    """A client's connection ended, after everything that came through it has been handed over."""

    client: int
    reason: str = ""  # why this side cut it off; empty when the other side closed it


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Comes every `core.TICK` seconds."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The coordinator itself was told to stop."""

    reason: str
    exit_code: int = 143  # of a job that stops because of it
    is_final: bool = False  # nobody is left who could see to a stop in good order


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
    clients: tuple[int, ...]  # all of them connected
    message: CoordinatorMessage


@dataclass(frozen=True, slots=True)
class Journal:
    """Write a decision down durably before anything that comes after it is done."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Note:
    """Write an event to the job's record and show it to the watchers."""

    event: AnyEvent
    watchers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Show a new watcher what was noted before it came."""

    client: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection once what was sent to it is out. Nothing from this client is listened to any more."""

    client: int


@dataclass(frozen=True, slots=True)
class End:
    """The job is over and everybody has been told. The last instruction but for turning newcomers away."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class Publish:
    """All parts are written: make a checkpoint of them. Takes as long as it takes and is answered by an input."""

    request: PublishRequest


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove what was written of a checkpoint that will not be one. After everything that was asked for before."""

    checkpoint: str


Instruction = Send | Journal | Note | CatchUp | Close | End | Publish | Discard


@dataclass(frozen=True, slots=True)
class Program:
    """What the job runs, for whoever starts one more worker of it."""

    script: str = ""
    arguments: tuple[str, ...] = ()
    servers: str = ""  # HOST:PORT of the keeper of its parameter servers
    space: str = ""  # its name there
    joins: bool = False  # its workers are expected to join, as far as its source tells; False: nobody knows
