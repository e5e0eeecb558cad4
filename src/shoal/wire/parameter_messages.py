"""The messages between workers and servers, and between servers; `AnyNote` also has the keeper's.

Each message is a typed body (msgspec). Raw bytes may follow it; receivers read them straight into their place. Not
here: the keeper's messages (`keeper_messages`), how messages become bytes (`note_frames`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.bounds import (
    Count,
    Items,
    Members,
    Name,
    Ordinal,
    OrdinalOrNone,
    PlaceOrNone,
    Size,
    Text,
    Total,
    TotalOrNone,
)
from shoal.values import ServerMap
from shoal.wire.keeper_messages import (
    Agreed,
    ChangeServers,
    CloseSpace,
    Filled,
    GroupNews,
    GroupStatus,
    Intercepted,
    Lost,
    OpenSpace,
    ServerBeat,
    ServerJoin,
    SpaceFailed,
    StopGroup,
    WatchGroup,
)
from shoal.wire.ledger_entries import AnyAnswer, AnyEntry, Reason
from shoal.wire.note import Note
from shoal.wire.tables import PushId, TableSpec

MOST_BLOCKS = 1 << 18  # of a table
UNIT_BLOCKS = 1024  # most of a unit, which one message is about: an optimizer takes its time for each

Digest = Annotated[bytes, Meta(max_length=64)]
OfferBytes = Annotated[bytes, Meta(max_length=1024)]  # of shared memory: `transport.memory.arena.Offer`
StateBytes = Annotated[bytes, Meta(max_length=8 << 20)]  # `parameters.blocks.block_state`
Blocks = Annotated[tuple[Ordinal, ...], Meta(max_length=MOST_BLOCKS)]  # their numbers in the table
Lengths = Annotated[tuple[Size, ...], Meta(max_length=UNIT_BLOCKS)]  # bytes of each block as a codec encoded it


# First messages of a connection


class ServerHello(Note, frozen=True, tag="hello"):
    """A worker's or another server's first message to a server."""

    version: Ordinal  # PARAMETER_VERSION of the sender
    job: Name = ""  # name space; empty: the sender is a server, which serves all jobs
    worker: OrdinalOrNone = -1  # number in its job
    server: OrdinalOrNone = -1  # number in the group
    arena: OfferBytes = b""  # offer of shared memory (`transport.memory.arena.Offer`), if the sender has any


class ServerWelcome(Note, frozen=True, tag="welcome"):
    server: Ordinal
    view: Ordinal  # version of the newest map that the server knows
    sees_arena: bool = False  # the server could open the sender's arena: both are on the same machine


class Refusal(Note, frozen=True, tag="refusal"):
    """A request is refused."""

    kind: Name  # version, token, unknown-job, quota, memory, rule, table, failed or bad-request
    reason: Text  # a whole sentence for the user, with figures and what to do next
    request: Count = 0  # number of the request, if it had one


class Echo(Note, frozen=True, tag="echo"):
    """A worker waits for a silent server and asks whether it is there. The server answers with the same message."""


# Worker to server


class Define(Note, frozen=True, tag="define"):
    """The job's table. Every worker sends it to every server; the first one counts, and the others must be equal."""

    request: Count
    table: TableSpec


class KeyList(Note, frozen=True, tag="key-list"):
    """Blocks in the order in which the sender will name them. The list is sent once, then named by its digest."""

    digest: Digest
    blocks: Blocks


class Stage(Note, frozen=True, tag="stage"):
    """Bytes of consecutive blocks of a key list: gradients, or, with `is_state`, whole blocks with their state."""

    push: PushId
    view: Ordinal
    keys: Digest  # digest of the key list
    first: Ordinal  # number in the list
    last: Ordinal  # one past the last
    place: PlaceOrNone = -1  # where the bytes are in the sender's arena; -1: they follow as payload
    is_state: bool = False
    state: StateBytes = b""  # is_state: what the bytes hold of each block (`parameters.blocks.block_state`)
    codec: Name = ""  # that encoded the payload, as in `--codec`; empty: the payload is the blocks' own bytes
    lengths: Lengths = ()  # of an encoded payload: one for each block


class StageEnd(Note, frozen=True, tag="stage-end"):
    """The sender has sent everything of the push that this server gets."""

    request: Count
    push: PushId
    view: Ordinal
    size: Size  # bytes of the blocks in all of its Stage messages, however they were encoded


class Discard(Note, frozen=True, tag="discard"):
    """This push will never be proposed: the server may drop what is staged of it."""

    push: PushId


class Propose(Note, frozen=True, tag="propose"):
    """Propose an entry to the home server."""

    view: Ordinal
    entry: AnyEntry


class Pull(Note, frozen=True, tag="pull"):
    """Send these blocks' values once the entry `at_least` is applied here (and staleness allows it)."""

    request: Count
    view: Ordinal
    keys: Digest
    first: Ordinal
    last: Ordinal
    at_least: Count = 0  # number of an entry
    by_value: bool = False  # send as payload even if memory is shared
    is_bounded: bool = True  # wait while the sender is too far ahead of the slowest; False for reads of a checkpoint
    with_state: bool = False  # send whole blocks with their optimizer's state, as payload
    meetings: Total = 0  # that the sender has attended: if more were called, a pull that would wait is `Held` instead
    codec: Name = ""  # that may encode values which are sent, as in `--codec`; empty: none


class Relay(Note, frozen=True, tag="relay"):
    """Bytes for another worker of the job's generation, or from it."""

    generation: Ordinal
    peer: Ordinal  # worker number: of the receiver on the way to the server, of the sender on the way from it


class RelayJoin(Note, frozen=True, tag="relay-join"):
    """The sender is in this generation now, and wants the bytes that its members send it."""

    generation: Ordinal
    workers: Members[Ordinal]


class RelayLost(Note, frozen=True, tag="relay-lost"):
    """A member's connection to the relay is gone."""

    generation: Ordinal
    peer: Ordinal
    reason: Text


# Server to worker


class Defined(Note, frozen=True, tag="defined"):
    request: Count
    has_values: bool  # the table has values already: no worker needs to assign first ones
    origin: Ordinal  # of the job's ledger; if it differs from before, the earlier ledger and all values are lost


class StageDone(Note, frozen=True, tag="stage-done"):
    request: Count
    push: PushId
    applied: Total  # number of the last entry applied here


class PushReleased(Note, frozen=True, tag="released"):
    """The sender no longer needs this push's places in the worker's arena: the push is applied here, or dropped."""

    push: PushId


class Answered(Note, frozen=True, tag="answered"):
    answer: AnyAnswer


class Part(Note, frozen=True, tag="part"):
    """Values of blocks: payload, or a place in the server's arena that `seal` guards."""

    request: Count
    first: Ordinal
    last: Ordinal
    applied: Total  # number of the last entry in them
    updates: Total  # updates in them
    place: PlaceOrNone = -1
    seal: PlaceOrNone = -1  # place of a 32-bit counter in the arena: odd while the bytes change, different afterwards
    arena: OfferBytes = b""  # offer of the arena; sent each time, since the worker may ignore any single answer
    state: StateBytes = b""  # with_state: what the payload holds of each block (`parameters.blocks.block_state`)
    codec: Name = ""  # that encoded the payload: the one that was asked for; empty: it is the blocks' own bytes
    lengths: Lengths = ()  # of an encoded payload: one for each block


class Held(Note, frozen=True, tag="held"):
    """A pull is not answered: all workers are called to a meeting, and the worker should come instead of waiting."""

    request: Count
    meetings: Total
    calling: Reason


class Moved(Note, frozen=True, tag="moved"):
    """The request used an old map, or went to a server that does not hold the blocks. Carries the newest known map."""

    request: Count
    map: ServerMap


# Server to server


class EntryRecord(Note, frozen=True, tag="record"):
    """Home to all: entry number `number` of a job's ledger."""

    job: Name
    view: Ordinal
    number: Total
    entry: AnyEntry
    stable: Total  # all servers of the view have recorded every entry up to this one


class Recorded(Note, frozen=True, tag="recorded"):
    job: Name
    view: Ordinal
    number: Total  # the sender has every entry up to this one


class ViewState(Note, frozen=True, tag="view-state"):
    """To the home of a new view: what the sender has of a job's ledger."""

    job: Name
    view: Ordinal
    number: TotalOrNone  # last entry; -1: the sender has no ledger
    entries: Items[tuple[Total, AnyEntry]]  # entries after the stable one


class LedgerCopy(Note, frozen=True, tag="ledger-copy"):
    """From home to a server without a ledger, or too far behind: the ledger after entry `number`, as payload."""

    job: Name
    view: Ordinal
    number: Total
    table: TableSpec | None


class Fetch(Note, frozen=True, tag="fetch"):
    """Send these blocks with their state: the requesting server will hold them in the next placement."""

    request: Count
    job: Name
    view: Ordinal
    blocks: Blocks
    at_least: Count = 0  # number of an entry that must be applied first: the sender keeps no updates up to it


class Fetched(Note, frozen=True, tag="fetched"):
    request: Count
    job: Name
    view: Ordinal
    blocks: Blocks
    applied: Total  # number of the last entry in them
    state: StateBytes  # what the payload holds of each block (`parameters.blocks.block_state`)


class PartialNorm(Note, frozen=True, tag="partial-norm"):
    """To home: squares of the summed gradients in the sender's blocks, by optimizer, for an update that clips."""

    job: Name
    view: Ordinal
    number: Total
    squares: Members[float]


class TotalNorm(Note, frozen=True, tag="total-norm"):
    job: Name
    view: Ordinal
    number: Total
    squares: Members[float]


AnyNote = (
    ServerHello | ServerWelcome | Echo | Refusal | Define | KeyList | Stage | StageEnd | Discard | Propose | Pull
    | Relay | RelayJoin | RelayLost
    | Defined | StageDone | PushReleased | Answered | Part | Held | Moved
    | EntryRecord | Recorded | ViewState | LedgerCopy | Fetch | Fetched | PartialNorm | TotalNorm
    | ServerJoin | GroupNews | WatchGroup | Filled | Lost | SpaceFailed | Intercepted | ServerBeat
    | OpenSpace | CloseSpace | ChangeServers | StopGroup | Agreed | GroupStatus
)  # fmt: skip  # one line per kind would fill a page
