"""The messages between workers and servers, and between servers; and with the keeper's, all of a server group.

Each is a typed body (msgspec); raw bytes may follow it, which go straight into their place. Not here: what the keeper
hears and says (`keeper_messages`), how messages become bytes (`note_frames`).
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


# Whoever connects, first of all


class Hello(Note, frozen=True, tag="hello"):
    """A worker's or another server's first message to a server."""

    version: Ordinal  # PARAMETER_VERSION of the sender
    job: Name = ""  # name space; empty: the sender is a server, and speaks of all
    worker: OrdinalOrNone = -1  # number in its job
    server: OrdinalOrNone = -1  # number in the group
    arena: OfferBytes = b""  # offer of shared memory (`transport.memory.arena.Offer`), where the sender has some


class Welcome(Note, frozen=True, tag="welcome"):
    server: Ordinal
    view: Ordinal  # version of the newest map that the server knows
    sees_arena: bool = False  # the server could open the sender's: it is on the same machine


class Refusal(Note, frozen=True, tag="refusal"):
    """A request will not be met."""

    kind: Name  # version, token, unknown-job, quota, memory, rule, table, failed or bad-request
    reason: Text  # a whole sentence for the user, with figures and what to do next
    request: Count = 0  # which one, where it had a number


class Echo(Note, frozen=True, tag="echo"):
    """A worker that hears nothing of a server it waits for: is it there? The server says the same."""


# Worker to server


class Define(Note, frozen=True, tag="define"):
    """The job's table. Every worker says it to every server; the first counts and the others must say the same."""

    request: Count
    table: TableSpec


class KeyList(Note, frozen=True, tag="key-list"):
    """Blocks in the order in which the sender will speak of them: sent once, then named by its digest."""

    digest: Digest
    blocks: Blocks


class Stage(Note, frozen=True, tag="stage"):
    """Bytes of consecutive blocks of a key list: gradients, or with `is_state` whole blocks with their state."""

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
    """All of the push that this server gets has been sent."""

    request: Count
    push: PushId
    view: Ordinal
    size: Size  # bytes of the blocks in all of its Stage messages, however they were encoded


class Discard(Note, frozen=True, tag="discard"):
    """This push will never be proposed: what is staged of it may go."""

    push: PushId


class Propose(Note, frozen=True, tag="propose"):
    """To the home server."""

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
    by_value: bool = False  # as payload even where memory is shared
    is_bounded: bool = True  # wait while the sender is too far ahead of the slowest; False for reads of a checkpoint
    with_state: bool = False  # whole blocks with their optimizer's state, as payload
    meetings: Total = 0  # that the sender has attended: if more were called, a pull that would wait is held instead
    codec: Name = ""  # that may encode values which are sent, as in `--codec`; empty: none


class Relay(Note, frozen=True, tag="relay"):
    """Bytes for another worker of the job's generation, or from it."""

    generation: Ordinal
    peer: Ordinal  # worker number: of the receiver on the way to the server, of the sender on the way from it


class RelayJoin(Note, frozen=True, tag="relay-join"):
    """The sender is in this generation now and wants what its members send it."""

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
    has_values: bool  # the table has values already: nobody needs to assign first ones
    origin: Ordinal  # of the job's ledger; another one than before: what that knew, and all values, are lost


class StageDone(Note, frozen=True, tag="stage-done"):
    request: Count
    push: PushId
    applied: Total  # number of the last entry applied here


class Released(Note, frozen=True, tag="released"):
    """The sender needs the places of this push in the worker's arena no more: it is applied here, or dropped."""

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
    seal: PlaceOrNone = -1  # place of a 32-bit counter in the arena: odd while the bytes change, another when they did
    arena: OfferBytes = b""  # offer of the arena: said each time, as nobody may wait for any given answer any more
    state: StateBytes = b""  # with_state: what the payload holds of each block (`parameters.blocks.block_state`)
    codec: Name = ""  # that encoded the payload: the one that was asked for; empty: it is the blocks' own bytes
    lengths: Lengths = ()  # of an encoded payload: one for each block


class Held(Note, frozen=True, tag="held"):
    """A pull is not answered: all workers are called to a meeting, which the sender would keep waiting."""

    request: Count
    meetings: Total
    calling: Reason


class Moved(Note, frozen=True, tag="moved"):
    """The request went by an old map, or to a server that does not hold the blocks; the newest map it knows."""

    request: Count
    map: ServerMap


# Server to server


class Record(Note, frozen=True, tag="record"):
    """Home to all: entry number `number` of a job's ledger."""

    job: Name
    view: Ordinal
    number: Total
    entry: AnyEntry
    stable: Total  # all servers of the view have recorded everything up to this one


class Recorded(Note, frozen=True, tag="recorded"):
    job: Name
    view: Ordinal
    number: Total  # the sender has everything up to this one


class ViewState(Note, frozen=True, tag="view-state"):
    """To the home of a new view: what the sender has of a job's ledger."""

    job: Name
    view: Ordinal
    number: TotalOrNone  # last entry; -1: it has no ledger
    entries: Items[tuple[Total, AnyEntry]]  # those after the stable one


class LedgerCopy(Note, frozen=True, tag="ledger-copy"):
    """Home to a server that has none, or is too far behind: the ledger as it is after entry `number`, as payload."""

    job: Name
    view: Ordinal
    number: Total
    table: TableSpec | None


class Fetch(Note, frozen=True, tag="fetch"):
    """Send these blocks with their state: the sender will hold them in the placement that is being made."""

    request: Count
    job: Name
    view: Ordinal
    blocks: Blocks
    at_least: Count = 0  # number of an entry that must be applied to them before: the sender keeps no update up to it


class Fetched(Note, frozen=True, tag="fetched"):
    request: Count
    job: Name
    view: Ordinal
    blocks: Blocks
    applied: Total  # number of the last entry in them
    state: StateBytes  # what the payload holds of each block (`parameters.blocks.block_state`)


class PartialNorm(Note, frozen=True, tag="partial-norm"):
    """To home: squares of the summed gradients that the sender answers for, by optimizer, for an update that clips."""

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
    Hello | Welcome | Echo | Refusal | Define | KeyList | Stage | StageEnd | Discard | Propose | Pull
    | Relay | RelayJoin | RelayLost
    | Defined | StageDone | Released | Answered | Part | Held | Moved
    | Record | Recorded | ViewState | LedgerCopy | Fetch | Fetched | PartialNorm | TotalNorm
    | ServerJoin | GroupNews | WatchGroup | Filled | Lost | SpaceFailed | Intercepted | ServerBeat
    | OpenSpace | CloseSpace | ChangeServers | StopGroup | Agreed | GroupStatus
)  # fmt: skip  # one line per kind would fill a page
