"""A simulated worker's group in one generation: streams to all other members, and exchanges over them.

Stands for `collectives.threaded_group` over `transport.tcp`. An exchange is whole on a member once the parts of
all members have come. So when a member dies, each of the others may have finished the exchange or not, in all
combinations that a real schedule or an unlucky network could produce. Not here: what is exchanged (`worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shoal.errors import Aborted, ExchangeFailed, PeerLost
from shoal.plan.world.network import Network, StreamEnd
from shoal.plan.world.virtual_time import Process
from shoal.values import Generation, Unreached

RETRY = 0.1  # seconds between two attempts to connect to a peer
LOOK = 0.05  # seconds between two looks at whether a peer answers
DOUBT = 0.25  # of the limit: a peer that has owed an answer for so long is waited for, as in `transport.tcp.tcp_mesh`

Done = Callable[[tuple[Any, ...]], None]
Failed = Callable[[ExchangeFailed], None]


GAVE_UP = object()  # the last message to each peer from a worker that leaves a broken group


class SimulatedDoorway:
    """A worker's listener: keeps peers' connections until their generation is this worker's own."""

    def __init__(self, network: Network, process: Process, worker: int) -> None:
        self.network = network
        self.process = process
        self.worker = worker
        self.on_arrival: Callable[[], None] = lambda: None
        self._arrivals: dict[tuple[int, int], StreamEnd] = {}  # by generation and worker
        self._oldest = 0  # generation whose connections are still kept
        network.listen(worker, process, self._accept)

    def _accept(self, end: StreamEnd, hello: tuple[int, int]) -> None:
        if hello[0] < self._oldest:
            end.close()
            return
        self._arrivals[hello] = end
        self.on_arrival()

    def take(self, generation: int, worker: int) -> StreamEnd | None:
        return self._arrivals.pop((generation, worker), None)

    def clear(self, before: int) -> None:
        """Drop connections of older generations."""
        self._oldest = before
        for number, worker in [key for key in self._arrivals if key[0] < before]:
            self._arrivals.pop((number, worker)).close()


class WorkerGroup:
    """One worker's side. At most one operation at a time is under way; its outcome comes through its callbacks."""

    def __init__(self, doorway: SimulatedDoorway, generation: Generation) -> None:
        rank = generation.rank_of(doorway.worker)
        assert rank is not None
        self.generation = generation
        self.rank = rank
        self.broken: ExchangeFailed | None = None  # after it, every operation fails at once
        self.since = 0.0  # when the current operation began
        self.is_busy = False
        self._doorway = doorway
        self._unreached: Unreached | None = None  # found out while connecting, by worker
        self.on_silence: Callable[[int], None] = lambda _: None  # called when the group breaks by a worker's silence
        self._has_told = False  # the others know that a peer does not answer
        self._is_doomed = False  # a peer gave up before all were connected
        self._streams: dict[int, StreamEnd] = {}  # by rank
        self._closed: set[int] = set()  # ranks whose stream has ended
        self._inbox: dict[tuple[int, int], tuple[str, Any]] = {}  # by rank and number of the exchange
        self._exchanges = 0
        self._wanted: tuple[int, ...] = ()  # ranks whose part the current exchange needs
        self._done: Done = lambda _: None
        self._failed: Failed = lambda _: None

    # Connecting: this worker connects to lower ranks, and higher ranks connect to it

    def connect(self, timeout: float, done: Done, failed: Failed) -> None:
        self._begin(done, failed)
        self._doorway.clear(self.generation.number)
        if self.broken is not None:
            self._fail(self.broken)
            return
        self._doorway.on_arrival = self._look
        deadline = self._doorway.process.time.now + timeout
        for rank in range(self.rank):
            self._dial(rank, deadline)
        self._doorway.process.after(timeout, self._give_up)
        self._look()
        self._check_connected()

    def _dial(self, rank: int, deadline: float) -> None:
        door = self._doorway
        if self.broken is not None or door.process.time.now > deadline:
            return
        hello = (self.generation.number, door.worker)
        end = door.network.connect(door.worker, door.process, self.generation.members[rank].worker, hello)
        if end is None:
            door.process.after(RETRY, lambda: self._dial(rank, deadline))
        else:
            self._adopt(rank, end)

    def _look(self) -> None:
        """Whether the missing peers have come."""
        if self.broken is not None or len(self._streams) == self.generation.size - 1:
            return
        for member in self.generation.members[self.rank + 1 :]:
            end = self._doorway.take(self.generation.number, member.worker)
            if end is not None:
                self._adopt(member.rank, end)

    def _adopt(self, rank: int, end: StreamEnd) -> None:
        self._streams[rank] = end
        end.listen(lambda message: self._received(rank, message), lambda: self._peer_closed(rank))
        self._check_connected()

    def _check_connected(self) -> None:
        is_whole = len(self._streams) == self.generation.size - 1 and not self._is_doomed
        if self.is_busy and self._exchanges == 0 and is_whole:
            self._finish(())

    @property
    def _missing(self) -> list[int]:
        return [rank for rank in range(self.generation.size) if rank not in {*self._streams, self.rank}]

    def _give_up(self) -> None:
        """Time is up: find peers that do not answer, and peers that answer and have not come."""
        if not self.is_busy or self._exchanges > 0:
            return
        network = self._doorway.network
        workers = [self.generation.members[rank].worker for rank in self._missing]
        reached = [other for other in workers if network.listens(other) and self._answers(other)]
        self._unreached = Unreached(
            unreachable=tuple(sorted(set(workers) - set(reached))),
            late=() if self._is_doomed else tuple(reached),
        )
        named = self._missing[0] if self._missing else None
        self._fail(PeerLost(f"rank {named} did not connect in time", peer=named))

    def _answers(self, worker: int) -> bool:
        return self._doorway.network.links.answers(self._doorway.worker, worker)

    def _check_doom(self) -> None:
        """A peer gave up: this worker gives up too, once it knows whether each of its peers answers."""
        if self.broken is not None or not self.is_busy or self._exchanges > 0 or not self._is_doomed:
            return
        if all(self._answers(self.generation.members[rank].worker) for rank in self._missing):
            self._unreached = Unreached()
            self._fail(PeerLost("another gave up before all were connected"))
        else:
            self._doorway.process.after(LOOK, self._check_doom)

    # Exchanges

    def exchange(self, label: str, part: Any, wanted: Iterable[int], callbacks: tuple[Done, Failed]) -> None:
        """Send this member's part to all; the answer has at least the parts of the wanted ranks, by rank."""
        self._begin(*callbacks)
        self._exchanges += 1
        self._wanted = tuple(wanted)
        self._inbox[self.rank, self._exchanges] = (label, part)
        if self.broken is not None:
            self._fail(self.broken)
            return
        for stream in self._streams.values():
            stream.send((self._exchanges, label, part))
        self._check_exchange()

    def _received(self, rank: int, message: Any) -> None:
        if message is GAVE_UP:
            self._is_doomed = True
            self._closed.add(rank)
            self._check_doom()
            self._check_exchange()
            if self.is_busy and self._exchanges > 0:  # when a member leaves, the mesh fails for all that still need it
                self._fail(PeerLost(f"rank {rank} gave up its operations", peer=rank))
            return
        number, label, part = message
        self._inbox[rank, number] = (label, part)
        self._check_exchange()

    def _peer_closed(self, rank: int) -> None:
        is_word = rank in self._closed  # the peer said why
        self._closed.add(rank)
        if not is_word and self.is_busy and self._exchanges == 0:
            self._fail(PeerLost(f"rank {rank} left before all were connected", peer=rank))
        self._check_exchange()

    def _check_exchange(self) -> None:
        if not self.is_busy or self._exchanges == 0:
            return
        missing = [rank for rank in self._wanted if (rank, self._exchanges) not in self._inbox]
        gone = next((rank for rank in missing if rank in self._closed), None)
        if gone is not None:
            self._fail(PeerLost(f"rank {gone} closed its connection", peer=gone))
        elif not missing:
            here = [self._inbox.pop((rank, self._exchanges), None) for rank in range(self.generation.size)]
            labels = {entry[0] for entry in here if entry is not None}
            assert len(labels) == 1, f"members are in different operations: {sorted(labels)}"
            self._finish(tuple(None if entry is None else entry[1] for entry in here))

    # The end

    def look(self, limit: float, is_over: Callable[[], bool], found: Callable[[Unreached], None]) -> None:
        """After a failure: peers that have not answered for the limit; wait for peers that owe an answer already."""
        silent = {rank: self._silent_for(rank) for rank in range(self.generation.size) if rank != self.rank}
        doubtful = [rank for rank, seconds in silent.items() if DOUBT * limit <= seconds < limit]
        if self.broken is None or self._unreached is not None:
            found(self._unreached or Unreached())
        elif doubtful and not is_over():
            self._tell_silence(doubtful[0])
            self._doorway.process.after(LOOK, lambda: self.look(limit, is_over, found))
        else:
            ranks = [rank for rank, seconds in silent.items() if seconds >= limit]
            workers = tuple(sorted(self.generation.members[rank].worker for rank in ranks))
            found(Unreached(workers))

    def _tell_silence(self, rank: int) -> None:
        """Tell the others once; they may know more."""
        if not self._has_told:
            self._has_told = True
            self.on_silence(self.generation.members[rank].worker)

    def _silent_for(self, rank: int) -> float:
        there = self.generation.members[rank].worker
        return self._doorway.network.links.silent_for(self._doorway.worker, there)

    def abort(self, reason: str) -> None:
        """Close the group from this side: operations in flight fail, and the others notice."""
        if self.broken is None:
            self._fail(Aborted(reason))

    def _begin(self, done: Done, failed: Failed) -> None:
        self.is_busy, self.since = True, self._doorway.process.time.now
        self._done, self._failed = done, failed

    def _finish(self, answer: tuple[Any, ...]) -> None:
        self.is_busy = False
        self._done(answer)

    def _fail(self, failure: ExchangeFailed) -> None:
        was_busy, self.is_busy = self.is_busy, False
        self.broken = failure
        time = self._doorway.process.time
        if failure.peer is not None and self._exchanges > 0 and self._silent_for(failure.peer) > 0:
            self._tell_silence(failure.peer)
        for stream in self._streams.values():
            stream.close(abruptly=time.chance(0.3), word=GAVE_UP)
        if was_busy:
            self._failed(failure)
