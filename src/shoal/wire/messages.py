"""The typed control messages between the coordinator and its clients (workers and the launcher), and their bytes.

Every message is a msgspec struct with a tag. Decoding checks types, so that bytes are either one of these messages or a
`WireError`. Not here: tensors (`frames`).
"""

from __future__ import annotations

import msgspec

from shoal.bounds import Count, ExitCode, Items, Members, Name, Ordinal, Size, Text
from shoal.errors import WireError
from shoal.events import AnyEvent
from shoal.terms import Made
from shoal.values import Address, Generation, Unreached
from shoal.wire.message_frames import framed

PROTOCOL_VERSION = 7
MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # a generation of 10,000 members fits; anything longer is refused unread


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all control messages."""


# Worker or launcher to coordinator


class Join(Message, frozen=True, tag="join"):
    version: Ordinal  # PROTOCOL_VERSION of the sender
    worker: Ordinal  # number with which the process was started
    host: Name
    process: Ordinal
    address: Address  # where peers reach the worker
    generation: Ordinal = 0  # of a worker that comes back: the generation it is in
    was_member: bool = False  # this process has been in a generation, so that it may hold an older state
    shoal: Name = ""  # version; empty: not said
    torch: Name = ""
    python: Name = ""  # without its last part, in which nothing that jobs need changes


class Watch(Message, frozen=True, tag="watch"):
    """A watcher's first message. A watcher takes no part, receives every event and may start workers.

    The launcher is a watcher: it may ask for a stop, and the job does not outlive it.
    """

    version: Ordinal
    is_launcher: bool = True


class Enlist(Message, frozen=True, tag="enlist"):
    """A watcher will start one more worker's process and asks for its number."""


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    generation: Ordinal
    step: Count
    operation: Text  # what the worker's script is in: "forward or backward", "all-reduce of gradients", ...
    stalled: float = 0.0  # seconds blocked in a collective; 0: in the script's own code
    point: Count = 0  # the last meeting outside loops that the script has come to: see `values.Lost`


class Ready(Message, frozen=True, tag="ready"):
    """The sender is in no generation and wants to be in the next one: it is a newcomer, or was left out."""

    generation: Ordinal  # the newest that the sender knows of
    unreachable: Members[Ordinal] = ()  # members that do not answer the sender; it sends `Ready` again when they do
    # How many of the job's calls a newcomer has compared with those of its own script. None: the sender was a member
    # before and has nothing to compare.
    seen: Ordinal | None = None
    is_ahead: bool = False  # the sender's script has come to a call that is not among those


class Calls(Message, frozen=True, tag="calls"):
    """The calls of the sender's script, from one member of a generation; newcomers compare them with their own."""

    first: Ordinal  # index of the first of these calls; earlier reports of this and later indexes are void
    calls: Items[Made]


class Report(Message, frozen=True, tag="report"):
    """Events of the sender, in order."""

    events: Items[AnyEvent]


class ExchangeBroken(Message, frozen=True, tag="exchange-broken"):
    """A collective failed on the sender: its step is void and it waits for the next generation."""

    generation: Ordinal
    step: Count
    operation: Text
    peer: Ordinal | None  # number of the worker that the sender waited for, if known
    reason: Text
    at_end: bool = False  # in the meeting at the end of a loop: workers that passed it may be done by now
    point: Count = 0  # number of the meeting outside loops, in program order; 0: in a loop
    holds: Ordinal = 0  # generation in which the sender's state was agreed on; 0: it has no state
    is_planned: bool = False  # nothing failed: the members regroup at a step's end, as they were asked to
    must_restore: bool = False  # no state can be trusted: the next generation starts from the newest checkpoint
    unreached: Unreached = Unreached()  # by worker number


class Unanswered(Message, frozen=True, tag="unanswered"):
    """A collective failed on the sender because a machine does not answer.

    Sent as soon as that is noticed, which may be long before the script gets to its report. More workers may be about
    to notice the same, so the coordinator should wait for their reports.
    """

    generation: Ordinal
    peer: Ordinal  # worker number


class Done(Message, frozen=True, tag="done"):
    """The sender's function has returned. The sender keeps its state and waits until all members are done."""

    generation: Ordinal
    step: Count
    reason: Text
    points: Count = 0  # meetings outside loops that the sender has passed
    is_through: bool = False  # nothing of the sender's script is left to run
    is_leaving: bool = False  # the sender was told to go, and does not want to wait for the others


class Failed(Message, frozen=True, tag="failed"):
    """The sender cannot go on; the job ends."""

    step: Count
    error: Name  # class name from `errors`
    text: Text


class Leave(Message, frozen=True, tag="leave"):
    """The sender's script has come to its last line, or the sender was told to go and hands its place over."""

    step: Count
    reason: Text
    is_handover: bool = False  # the job goes on without the sender


class StopRequest(Message, frozen=True, tag="stop-request"):
    """All loops should end at an agreed step."""

    reason: Text
    exit_code: ExitCode = 0  # of the job, if this stop ends it: 130 for Ctrl-C


class ProcessExited(Message, frozen=True, tag="process-exited"):
    """Launcher only: the engine saw a worker's process end."""

    worker: Ordinal
    code: ExitCode  # exit status; -9 for a SIGKILL
    reason: Text
    loss: Text = ""  # what took the process along, such as "its node b is gone: ..."; empty: it ended by itself


class ProcessWorking(Message, frozen=True, tag="process-working"):
    """Launcher only: a worker's process computes, even if a long call keeps it from sending heartbeats."""

    worker: Ordinal


class Inject(Message, frozen=True, tag="inject"):
    """From the launcher only, passed on to the worker: an injected fault."""

    worker: Ordinal
    fault: Name  # cut, slow or fill-disk
    seconds: float
    peer: Ordinal | None = None  # worker at the other end of the link; None: all workers
    rate: float = 0.0  # bytes per second of a slow link


class PartWritten(Message, frozen=True, tag="part-written"):
    """The sender's part of a checkpoint is whole and flushed."""

    checkpoint: Name
    generation: Ordinal
    step: Count
    file: Name  # name within the checkpoint
    size: Size  # bytes
    seconds: float  # since the copy began
    blocked: float  # seconds that the script was held up
    reason: Text  # why the checkpoint is made
    mark: Name = ""


class PartFailed(Message, frozen=True, tag="part-failed"):
    """The sender's part of a checkpoint could not be written."""

    checkpoint: Name
    generation: Ordinal
    step: Count
    reason: Text


# Coordinator to worker or launcher


class Welcome(Message, frozen=True, tag="welcome"):
    config: Text  # the job's configuration, TOML
    heartbeat: float  # seconds between heartbeats, in both directions
    generation: Generation | None = None  # the current one, if there is one
    is_member: bool = False  # the receiver came back after a broken connection and is still in that generation
    script: Text = ""
    arguments: Members[Text] = ()
    digest: Name = ""  # of the script's file, in hex; empty: not known
    servers: Name = ""  # HOST:PORT of the keeper of the job's parameter servers; empty: the job has none
    space: Name = ""  # the job's name on those servers
    given: Items[Name] = ()  # settings that whoever started the job has set; they beat those of `shoal.main`


class Enlisted(Message, frozen=True, tag="enlisted"):
    worker: Ordinal  # number of the process to start


class WrittenDown(Message, frozen=True, tag="written-down"):
    """The receiver's last message (Leave or Failed) is written down: the receiver may go."""


class Released(Message, frozen=True, tag="released"):
    """All members are done, or the receiver may go before the others. Its script may run on to its last line."""


class Beat(Message, frozen=True, tag="beat"):
    """The coordinator is there. Any of its messages ends a worker's wait for it."""


class RegroupWish(Message, frozen=True, tag="regroup-wish"):
    """Newcomers wait to be let in: the members should regroup at the end of a step that they agree on."""

    generation: Ordinal
    reason: Text


class Expelled(Message, frozen=True, tag="expelled"):
    """The receiver is out of its generation; it may come back as a newcomer, without its state."""

    generation: Ordinal  # the last that the receiver was in
    reason: Text


class Formed(Message, frozen=True, tag="formed"):
    generation: Generation


class Briefing(Message, frozen=True, tag="briefing"):
    """Calls that a newcomer has not seen. The newcomer compares them and says again when it is ready.

    All calls but the last one are over.
    """

    generation: Generation  # the current one
    first: Ordinal  # index of the first of these calls
    calls: Items[Made]


class StopNotice(Message, frozen=True, tag="stop-notice"):
    """Vote for stopping at the next agreement."""

    reason: Text


class CheckpointSettled(Message, frozen=True, tag="checkpoint-settled"):
    """A checkpoint is published, or lost: the next one may be made."""

    checkpoint: Name
    published: bool


class Ended(Message, frozen=True, tag="ended"):
    """The job is over: the receiver should leave."""

    exit_code: ExitCode
    error: Name  # class name from `errors`, empty when all is well
    text: Text


class Turned(Message, frozen=True, tag="turned-away"):
    """The coordinator turns the receiver away, and then closes the connection."""

    reason: Text


class Happened(Message, frozen=True, tag="happened"):
    """An event for watchers, as it is written to the file."""

    time: float
    event: AnyEvent


ClientMessage = (
    Join
    | Watch
    | Heartbeat
    | Report
    | ExchangeBroken
    | Unanswered
    | Done
    | Failed
    | Leave
    | StopRequest
    | ProcessExited
    | ProcessWorking
    | PartWritten
    | PartFailed
    | Enlist
    | Ready
    | Calls
    | Inject
)
CoordinatorMessage = (
    Welcome
    | Enlisted
    | Beat
    | WrittenDown
    | Released
    | Formed
    | RegroupWish
    | Expelled
    | Briefing
    | StopNotice
    | CheckpointSettled
    | Inject
    | Ended
    | Turned
    | Happened
)

_encoder = msgspec.msgpack.Encoder()
_client_decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
_coordinator_decoder: msgspec.msgpack.Decoder[CoordinatorMessage] = msgspec.msgpack.Decoder(CoordinatorMessage)


def encode(message: Message) -> bytes:
    """The message with its length before it."""
    return framed(_encoder.encode(message), MAX_MESSAGE_BYTES, type(message).__name__)


def decode_client(body: bytes) -> ClientMessage:
    try:
        return _client_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a message of a client: {error}") from None


def decode_coordinator(body: bytes) -> CoordinatorMessage:
    try:
        return _coordinator_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a message of the coordinator: {error}") from None
