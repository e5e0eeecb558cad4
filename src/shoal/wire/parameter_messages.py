"""The messages of a server group: workers, servers and the keeper of the group.

Each is a typed body (msgspec); raw bytes may follow it, which go straight into their place. Not here: how they become
bytes (`note_frames`).
"""

from __future__ import annotations

import msgspec

from shoal.values import Address, ServerMap
from shoal.wire.ledger_entries import AnyAnswer, AnyEntry
from shoal.wire.tables import PushId, TableSpec

PARAMETER_VERSION = 1


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all messages."""


# Whoever connects, first of all


class Hello(Note, frozen=True, tag="hello"):
    """A worker's or another server's first message to a server."""

    version: int  # PARAMETER_VERSION of the sender
    job: str = ""  # name space; empty: the sender is a server, and speaks of all
    worker: int = -1  # number in its job
    server: int = -1  # number in the group
    arena: bytes = b""  # offer of shared memory (`transport.arena.Offer`), where the sender has some


class Welcome(Note, frozen=True, tag="welcome"):
    server: int
    view: int  # version of the newest map that the server knows
    sees_arena: bool = False  # the server could open the sender's: it is on the same machine


class Refusal(Note, frozen=True, tag="refusal"):
    """A request will not be met."""

    kind: str  # version, token, unknown-job, quota, memory, rule, table or bad-request
    reason: str  # a whole sentence for the user, with figures and what to do next
    request: int = 0  # which one, where it had a number


# Worker to server


class Define(Note, frozen=True, tag="define"):
    """The job's table. Every worker says it to every server; the first counts and the others must say the same."""

    request: int
    table: TableSpec


class KeyList(Note, frozen=True, tag="key-list"):
    """Blocks in the order in which the sender will speak of them: sent once, then named by its digest."""

    digest: bytes
    blocks: tuple[int, ...]


class Stage(Note, frozen=True, tag="stage"):
    """Bytes of consecutive blocks of a key list: gradients, or with `is_state` whole blocks with their state."""

    push: PushId
    view: int
    keys: bytes  # digest of the key list
    first: int  # number in the list
    last: int  # one past the last
    place: int = -1  # where the bytes are in the sender's arena; -1: they follow as payload
    is_state: bool = False
    state: bytes = b""  # is_state: what the bytes hold of each block (`parameters.block_state`)


class StageEnd(Note, frozen=True, tag="stage-end"):
    """All of the push that this server gets has been sent."""

    request: int
    push: PushId
    view: int
    size: int  # bytes, over all of its Stage messages


class Discard(Note, frozen=True, tag="discard"):
    """This push will never be proposed: what is staged of it may go."""

    push: PushId


class Propose(Note, frozen=True, tag="propose"):
    """To the home server."""

    view: int
    entry: AnyEntry


class Pull(Note, frozen=True, tag="pull"):
    """Send these blocks' values once the entry `at_least` is applied here (and staleness allows it)."""

    request: int
    view: int
    keys: bytes
    first: int
    last: int
    at_least: int = 0  # number of an entry
    by_value: bool = False  # as payload even where memory is shared
    is_bounded: bool = True  # wait while the sender is too far ahead of the slowest; False for reads of a checkpoint
    with_state: bool = False  # whole blocks with their optimizer's state, as payload
    meetings: int = 0  # that the sender has attended: if more were called, a pull that would wait is held instead


class Relay(Note, frozen=True, tag="relay"):
    """Bytes for another worker of the job's generation, or from it."""

    generation: int
    peer: int  # worker number: of the receiver on the way to the server, of the sender on the way from it


class RelayJoin(Note, frozen=True, tag="relay-join"):
    """The sender is in this generation now and wants what its members send it."""

    generation: int
    workers: tuple[int, ...]


class RelayLost(Note, frozen=True, tag="relay-lost"):
    """A member's connection to the relay is gone."""

    generation: int
    peer: int
    reason: str


# Server to worker


class Defined(Note, frozen=True, tag="defined"):
    request: int
    has_values: bool  # the table has values already: nobody needs to assign first ones
    origin: int  # of the job's ledger; another one than before: what that knew, and all values, are lost


class StageDone(Note, frozen=True, tag="stage-done"):
    request: int
    push: PushId
    applied: int  # number of the last entry applied here


class Released(Note, frozen=True, tag="released"):
    """The sender needs the places of this push in the worker's arena no more: it is applied here, or dropped."""

    push: PushId


class Answered(Note, frozen=True, tag="answered"):
    answer: AnyAnswer


class Part(Note, frozen=True, tag="part"):
    """Values of blocks: payload, or a place in the server's arena that `seal` guards."""

    request: int
    first: int
    last: int
    applied: int  # number of the last entry in them
    updates: int  # updates in them
    place: int = -1
    seal: int = -1  # place of a 32-bit counter in the arena: odd while the bytes change, another when they did
    arena: bytes = b""  # offer of the arena: said each time, as any answer may be one that nobody waits for any more
    state: bytes = b""  # with_state: what the payload holds of each block (`parameters.block_state`)


class Held(Note, frozen=True, tag="held"):
    """A pull is not answered: all workers are called to a meeting, which the sender would keep waiting."""

    request: int
    meetings: int
    calling: str


class Moved(Note, frozen=True, tag="moved"):
    """The request went by an old map, or to a server that does not hold the blocks; the newest map it knows."""

    request: int
    map: ServerMap


# Server to server


class Record(Note, frozen=True, tag="record"):
    """Home to all: entry number `number` of a job's ledger."""

    job: str
    view: int
    number: int
    entry: AnyEntry
    stable: int  # all servers of the view have recorded everything up to this one


class Recorded(Note, frozen=True, tag="recorded"):
    job: str
    view: int
    number: int  # the sender has everything up to this one


class ViewState(Note, frozen=True, tag="view-state"):
    """To the home of a new view: what the sender has of a job's ledger."""

    job: str
    view: int
    number: int  # last entry; -1: it has no ledger
    entries: tuple[tuple[int, AnyEntry], ...]  # those after the stable one


class LedgerCopy(Note, frozen=True, tag="ledger-copy"):
    """Home to a server that has none, or is too far behind: the ledger as it is after entry `number`, as payload."""

    job: str
    view: int
    number: int
    table: TableSpec | None


class Fetch(Note, frozen=True, tag="fetch"):
    """Send these blocks with their state: the sender will hold them in the placement that is being made."""

    request: int
    job: str
    view: int
    blocks: tuple[int, ...]
    at_least: int = 0  # number of an entry that must be applied to them before: the sender keeps no update up to it


class Fetched(Note, frozen=True, tag="fetched"):
    request: int
    job: str
    view: int
    blocks: tuple[int, ...]
    applied: int  # number of the last entry in them
    state: bytes  # what the payload holds of each block (`parameters.block_state`)


class PartialNorm(Note, frozen=True, tag="partial-norm"):
    """To home: squares of the summed gradients that the sender answers for, by optimizer, for an update that clips."""

    job: str
    view: int
    number: int
    squares: tuple[float, ...]


class TotalNorm(Note, frozen=True, tag="total-norm"):
    job: str
    view: int
    number: int
    squares: tuple[float, ...]


# To and from the keeper


class ServerJoin(Note, frozen=True, tag="server-join"):
    version: int
    number: int  # that its process was started with
    address: Address
    host: str
    process: int


class Space(msgspec.Struct, frozen=True):
    """A job that may use the group."""

    job: str
    token: str
    quota: int  # bytes of parameters and state over all servers; 0: no limit


class GroupNews(Note, frozen=True, tag="group-news"):
    """Keeper to all: the present map; to servers also the jobs that may use them. Also the answer to ServerJoin."""

    map: ServerMap | None  # None: the group is not complete yet
    spaces: tuple[Space, ...] = ()  # to servers only


class WatchGroup(Note, frozen=True, tag="watch-group"):
    """A worker or a launcher wants to hear of every new map."""

    version: int
    job: str = ""


class Filled(Note, frozen=True, tag="filled"):
    """The sender holds every block of `after` that is its."""

    view: int
    size: int = 0  # bytes that it has fetched for that


class Lost(Note, frozen=True, tag="lost"):
    """The sender should hold blocks that no living server has: a worker must assign them from a checkpoint."""

    view: int
    job: str
    blocks: int
    size: int  # bytes


class ServerFigures(msgspec.Struct, frozen=True):
    """Running totals of one server since it started."""

    bytes_in: int = 0
    bytes_out: int = 0
    requests: int = 0
    updates: int = 0  # applied
    queue_seconds: float = 0.0  # that requests waited before they were looked at, in sum
    busy_seconds: float = 0.0  # in which the loop did something
    seconds: float = 0.0  # since the start
    held_bytes: int = 0  # of parameters, state and staged pushes
    limit_bytes: int = 0  # that it may hold


class ServerBeat(Note, frozen=True, tag="server-beat"):
    figures: ServerFigures
    staleness: tuple[tuple[str, tuple[int, ...]], ...] = ()  # home only; by job: updates by their staleness, 0 and up
    clocks: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()  # home only; by job: (worker, its clock)
    unreached: tuple[int, ...] = ()  # servers of the map that the sender has not been connected to for long


class OpenSpace(Note, frozen=True, tag="open-space"):
    request: int
    space: Space


class CloseSpace(Note, frozen=True, tag="close-space"):
    """The job is over: what the group holds of it may go."""

    request: int
    job: str


class ChangeServers(Note, frozen=True, tag="change-servers"):
    """An administrator's: take servers out, or (for the starter) start `more`."""

    request: int
    remove: tuple[int, ...] = ()
    more: int = 0


class StopGroup(Note, frozen=True, tag="stop-group"):
    """An administrator's: whoever started the group should end it."""

    request: int


class Agreed(Note, frozen=True, tag="agreed"):
    """A request to the keeper is met."""

    request: int


class GroupStatus(Note, frozen=True, tag="group-status"):
    """Asked of the keeper without the rest, and its answer."""

    request: int
    map: ServerMap | None = None
    spaces: tuple[str, ...] = ()  # names of jobs
    figures: tuple[tuple[int, ServerFigures], ...] = ()
    staleness: tuple[tuple[str, tuple[int, ...]], ...] = ()
    clocks: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()


AnyNote = (
    Hello | Welcome | Refusal | Define | KeyList | Stage | StageEnd | Discard | Propose | Pull
    | Relay | RelayJoin | RelayLost
    | Defined | StageDone | Released | Answered | Part | Held | Moved
    | Record | Recorded | ViewState | LedgerCopy | Fetch | Fetched | PartialNorm | TotalNorm
    | ServerJoin | GroupNews | WatchGroup | Filled | Lost | ServerBeat
    | OpenSpace | CloseSpace | ChangeServers | StopGroup | Agreed | GroupStatus
)  # fmt: skip  # one line per kind would fill a page
