"""Meshes and groups between threads or processes, and a replay that checks schedules without any transport."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.collectives.schedule import Action, Program
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.transport.in_process import in_process_meshes
from shoal.transport.mesh import Mesh
from shoal.transport.tcp import PeerListener, connect_mesh
from shoal.values import Address, Generation, Member

TOKEN = "a token for tests"
TRANSPORTS = ("in-process", "tcp")
SCHEDULES = ("ring", "tree", "auto")
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


def tcp_meshes(size: int) -> list[Mesh]:
    listeners = [PeerListener("127.0.0.1", TOKEN) for _ in range(size)]
    try:
        generation = generation_of([listener.address for listener in listeners])
        return succeed(
            *(
                lambda rank=rank, listener=listener: connect_mesh(listener, generation, rank, TOKEN, PATIENCE)
                for rank, listener in enumerate(listeners)
            )
        )
    finally:
        for listener in listeners:
            listener.close()


@contextmanager
def meshes(transport: str, size: int) -> Iterator[list[Mesh]]:
    made = tcp_meshes(size) if transport == "tcp" else list(in_process_meshes(size))
    try:
        yield made
    finally:
        for mesh in made:
            mesh.close()


@contextmanager
def groups(
    transport: str, size: int, schedule: str = "auto", codec: Callable[[], Codec] = Identity
) -> Iterator[list[ThreadedGroup]]:
    with meshes(transport, size) as ends:
        made = [ThreadedGroup.over(mesh if size > 1 else None, 1, schedule, codec()) for mesh in ends]
        try:
            yield made
        finally:
            for group in made:
                group.abort("the test is over")
            for group in made:
                group.close()


# A contribution is (rank, how it was summed): a nested tuple that shows the order.
Sum = tuple[object, ...] | int


def replay(programs: Sequence[Program]) -> list[list[Sum]]:
    """Run the programs of all ranks on symbols. Each rank's segments as sums of ranks; AssertionError on deadlock."""
    state: list[list[Sum]] = [[rank] * program.segments for rank, program in enumerate(programs)]
    streams: dict[tuple[int, int], deque[tuple[int, int, Sum]]] = {}
    waiting = {rank: _steps(program) for rank, program in enumerate(programs)}
    moved = True
    while moved:
        moved = False
        for rank, steps in waiting.items():
            while steps:
                transfer = steps[0]
                if transfer.action is Action.SEND:
                    sent = (transfer.number, transfer.segment, state[rank][transfer.segment])
                    streams.setdefault((rank, transfer.peer), deque()).append(sent)
                else:
                    stream = streams.get((transfer.peer, rank))
                    if not stream:
                        break
                    number, segment, value = stream.popleft()
                    assert (number, segment) == (transfer.number, transfer.segment)
                    own = state[rank][segment]
                    state[rank][segment] = value if transfer.action is Action.COPY else (own, value)
                steps.popleft()
                moved = True
    assert not any(waiting.values()), "the ranks wait for each other"
    assert not any(streams.values()), "something was sent that nobody receives"
    return state


def _steps(program: Program) -> deque:
    return deque(transfer for step in program.rounds for part in (step.sends, step.receives) for transfer in part)


def ranks_in(value: Sum) -> list[int]:
    """Every rank that a sum contains, as often as it is in there."""
    if isinstance(value, int):
        return [value]
    return sorted(rank for part in value for rank in ranks_in(part))
