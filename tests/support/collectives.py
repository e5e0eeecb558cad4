"""Meshes and groups between threads or processes, and a replay that checks schedules without any transport."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest

from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.collectives.schedules.schedule import Action, Program, Transfer
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.links.plan import LinkPlan, fixed_plan
from shoal.settings.all_reduce_settings import SCHEDULES
from shoal.transport.mesh.in_process import in_process_meshes
from shoal.transport.mesh.mesh import Mesh
from shoal.transport.native import native
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Address, Generation, Member
from support.encryption import insisting_on_tls
from support.memory_groups import MEMORY_KINDS, memory_groups
from support.relays import relay_meshes

TOKEN = "a token for tests"
TRANSPORTS = ("in-process", "tcp", "sparse", "tls", "relay")  # sparse: TCP, connected around a ring to begin with
# Every schedule runs every contract; those that differ in their programs only do it without sockets.
SCHEDULED_KINDS = [
    *(("in-process", schedule) for schedule in SCHEDULES),
    *(("tcp", schedule) for schedule in ("ring", "tree", "auto")),
    *(("sparse", schedule) for schedule in ("halving-doubling", "auto")),
]
IN_MEMORY = "memory" if native is not None else "memory-python"  # as a group of one machine has it
KINDS_OF_MEMORY = [name for name, _ in MEMORY_KINDS]
# Each way of its own runs the group's contract every time; those that differ from one of them in a program or in a
# setting only do so in the long run.
_EVERY_TIME = [
    ("in-process", "auto"),
    ("tcp", "auto"),
    ("sparse", "auto"),
    (IN_MEMORY, "auto"),
    ("memory-slots", "auto"),
    ("two-level", "auto"),
]
GROUP_KINDS = [
    pytest.param(kind, id="-".join(kind), marks=() if kind in _EVERY_TIME else pytest.mark.long)
    for kind in (*SCHEDULED_KINDS, *MEMORY_KINDS)
]
PATIENCE = 60.0  # seconds before a test gives up on a thread; never reached when all is well

Result = TypeVar("Result")


def generation_of(addresses: Sequence[Address], number: int = 1) -> Generation:
    members = tuple(
        Member(rank=rank, worker=rank, host="here", process=1, address=address)
        for rank, address in enumerate(addresses)
    )
    return Generation(number=number, members=members, schedule="auto", codec="identity", reason="a test")


def in_threads(*calls: Callable[[], Result]) -> list[Result | BaseException]:
    """Run all at once; each one's result or what it raised."""
    results: list[Result | BaseException | None] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a call did not return"
    return results


def succeed(*calls: Callable[[], Result]) -> list[Result]:
    """Run all at once; all must return."""
    results = in_threads(*calls)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@contextmanager
def tcp_meshes(size: int, *, is_sparse: bool) -> Iterator[list[Mesh]]:
    """A sparse mesh needs its listener as long as it is used."""
    listeners = [PeerListener("127.0.0.1", TOKEN) for _ in range(size)]
    generation = generation_of([listener.address for listener in listeners])

    def connect(rank: int) -> Mesh:
        around = {(rank - 1) % size, (rank + 1) % size}
        peers = around if is_sparse else None
        return connect_mesh(listeners[rank], generation, rank, PATIENCE, peers=peers)

    try:
        made = succeed(*(lambda rank=rank: connect(rank) for rank in range(size)))
        for listener in () if is_sparse else listeners:
            listener.close()
        yield made
    finally:
        for listener in listeners:
            listener.close()


@contextmanager
def meshes(transport: str, size: int) -> Iterator[list[Mesh]]:
    if transport == "relay":
        with relay_meshes(size) as ends:
            yield list(ends)
        return
    assert transport in TRANSPORTS, f"there is no transport {transport!r} here; with SHOAL_NATIVE=0 there is none in C"
    with ExitStack() as stack:
        if transport == "in-process":
            made: list[Mesh] = list(in_process_meshes(size))
        else:
            with insisting_on_tls(transport == "tls"):
                made = stack.enter_context(tcp_meshes(size, is_sparse=transport == "sparse"))
        try:
            yield made
        finally:
            for mesh in made:
                mesh.close()


def plan_of(size: int) -> LinkPlan:
    """With hosts, for those who ask for them."""
    return fixed_plan(tuple(tuple(range(size))[number::2] for number in range(min(2, size))))


@contextmanager
def groups(
    transport: str, size: int, schedule: str = "auto", codec: Callable[[], Codec] = Identity
) -> Iterator[list[ThreadedGroup]]:
    if transport in KINDS_OF_MEMORY:
        with memory_groups(transport, size, codec) as found:
            yield found
        return
    with meshes(transport, size) as ends:
        plan = plan_of(size)
        made = [ThreadedGroup.over(mesh if size > 1 else None, 1, schedule, codec(), plan) for mesh in ends]
        try:
            yield made
        finally:
            for group in made:
                group.abort("the test is over")
            for group in made:
                group.close()


# A contribution is a rank, or a pair of what was summed: the lower rank's comes first, as in the executor.
Sum = tuple[object, ...] | int


def replay(programs: Sequence[Program]) -> list[list[Sum]]:
    """Run the programs of all ranks on symbols. Each rank's blocks as sums of ranks.

    AssertionError on deadlock, on frames that nobody takes, and where a block changes that was sent and may still be
    on its way: what was received so far must prove that its receiver had taken it before.
    """
    ranks = [_Replayed(rank, program) for rank, program in enumerate(programs)]
    streams: dict[tuple[int, int], deque[_Frame]] = {}
    moved = True
    while moved:
        moved = False
        for rank in ranks:
            while rank.steps:
                transfer = rank.steps[0]
                if transfer.action is Action.SEND:
                    frames = streams.setdefault((rank.number, transfer.peer), deque())
                    frames.append(rank.send(transfer, 1 << sum(one.sent for one in ranks)))
                elif frames := streams.get((transfer.peer, rank.number), deque()):
                    rank.receive(transfer, frames.popleft())
                else:
                    break
                rank.steps.popleft()
                moved = True
    assert not any(rank.steps for rank in ranks), "the ranks wait for each other"
    assert not any(streams.values()), "something was sent that nobody receives"
    return [rank.values for rank in ranks]


@dataclass(frozen=True)
class _Frame:
    identity: int  # one bit, different for every frame
    number: int
    blocks: range
    values: list[Sum]
    taken: int  # bits of the frames that the sender knew to be received


class _Replayed:
    """One rank in a replay."""

    def __init__(self, number: int, program: Program) -> None:
        self.number = number
        self.steps = deque(each for step in program.rounds for part in (step.sends, step.receives) for each in part)
        self.values: list[Sum] = [number] * program.segments
        self.sent = 0  # frames
        self._program = program
        self._posted = [0] * program.segments  # bits of the frames that hold each block
        self._taken = 0  # bits of the frames that are known to be received
        self._last: dict[int, int] = {}  # number of the last frame to each peer

    def send(self, transfer: Transfer, identity: int) -> _Frame:
        assert transfer.number > self._last.get(transfer.peer, -1), "numbers go down along a stream"
        self._last[transfer.peer] = transfer.number
        self.sent += 1
        blocks = self._program.blocks(transfer.segment)
        for block in blocks:
            self._posted[block] |= identity
        return _Frame(identity, transfer.number, blocks, [self.values[block] for block in blocks], self._taken)

    def receive(self, transfer: Transfer, frame: _Frame) -> None:
        blocks = self._program.blocks(transfer.segment)
        assert (frame.number, frame.blocks) == (transfer.number, blocks)
        self._taken |= frame.taken | frame.identity
        for block, value in zip(blocks, frame.values, strict=True):
            assert not self._posted[block] & ~self._taken, f"rank {self.number} changes block {block} on its way"
            pair = (value, self.values[block]) if transfer.peer < self.number else (self.values[block], value)
            self.values[block] = value if transfer.action is Action.COPY else pair


def ranks_in(value: Sum) -> list[int]:
    """Every rank that a sum contains, as often as it is in there."""
    if isinstance(value, int):
        return [value]
    return sorted(rank for part in value for rank in ranks_in(part))
