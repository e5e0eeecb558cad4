"""Measures the links of a mesh, in well under a second, before a group uses it, and plans the schedules.

A group calls `survey`, which measures if the schedule depends on links, and always returns a plan; `told` makes the
event that explains the plan.

In rounds of pairs (`rounds`) the lower rank of a pair asks and the higher one answers: some small messages for the
latency, then larger and larger ones each way for the bandwidth, as long as there is time. Only the asking rank reads a
clock. Rank 0 collects the figures and gives them to all ranks, through a tree, so that all have the same. Links that
differ much from the others are measured once more, among themselves: a process may merely have had to wait for a core.
Pairs that are left when the time is up are not measured; `completed` says what is assumed for them. A lost peer raises
`PeerLost`, and `Mesh.abort` ends the measuring.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import Ordinal, Size
from shoal.errors import WireError
from shoal.events import ScheduleChosen
from shoal.links.matrix import Hosts, Link, LinkMatrix, completed
from shoal.links.plan import FIXED, LinkPlan, SizeTable, fixed_plan, make_plan
from shoal.links.rounds import Pair, packed, rounds_of
from shoal.transport.mesh.first_peers import children_of, parent_of
from shoal.transport.mesh.mesh import Mesh

MEASURED = ("auto", "ring", "hierarchical")  # schedules that depend on links; a ring by the order of its ranks
LIMIT_SECONDS = 0.3  # for all rounds; the last pair of every rank may take a little longer
AGAIN_SECONDS = 0.15  # for the rounds of links that are measured once more
DOUBTFUL = 2.0  # times as slow or as fast as the median
PINGS = 16  # small messages there and back, of which the fastest counts
BURSTS = (16 * 1024, 128 * 1024, 1024 * 1024)  # bytes; the largest that there was time for counts
REPEATS = 3  # of a burst, of which the fastest counts
GROWTH = 8  # how much longer a burst may take than one of the size before
LEAST_PER_BYTE = 1e-11  # seconds; 100 GB/s, which no stream gets to: a burst that showed less was disturbed

# magic, bytes that follow, bytes wanted in the answer. Longer than the mark of a peer that leaves, see `Mesh`.
_HEADER = struct.Struct("!16sQQ")
_MAGIC = b"shoal-links-1\0\0\0"
_ENOUGH = 2**64 - 1  # as bytes wanted: no answer, this pair is done
_MOST_BYTES = 1 << 28  # of one message; anything above is garbage


class Figure(msgspec.Struct, frozen=True, array_like=True):
    """One direction of a link as it was measured."""

    source: Ordinal
    target: Ordinal
    burst: Size  # bytes that the bandwidth was measured with
    link: Link


class _Figures(msgspec.Struct, frozen=True):
    """From one rank to rank 0, and from there to all."""

    figures: Annotated[tuple[Figure, ...], Meta(max_length=1 << 24)] = ()
    seconds: float = 0.0  # that measuring took, by rank 0's clock


_decoder = msgspec.msgpack.Decoder(_Figures)


def survey(mesh: Mesh, schedule: str, hosts: Hosts = (), *, deterministic: bool = False) -> LinkPlan:
    """Plan for this mesh. All its ranks call this before anything else travels there, and all get the same plan.

    `hosts`: the ranks of each host, in the same order on every rank, if a host is to be treated as one. A single host
    has no links. `deterministic`: measure nothing. Raises `PeerLost` and `Aborted` as every use of a mesh.
    """
    if deterministic or mesh.size < 2 or len(hosts) == 1 or schedule not in MEASURED:
        return fixed_plan(hosts)
    return make_plan(measure(mesh, hosts), hosts)


def told(plan: LinkPlan, generation: int, setting: str, in_memory: Hosts = (), *, memory: str = "") -> ScheduleChosen:
    """The event that explains a plan.

    `setting`: the schedule that the job asks for. `in_memory`: all hosts, if ranks of one host reduce in its memory.
    `memory`: what was measured about that memory, or why it is not used.
    """
    table, reason, asked = plan.all_reduce, plan.reason, f"asked for with --schedule {setting}; "
    if len(in_memory) == 1:
        table = SizeTable((0,), ("memory",))
        reason = f"all {len(in_memory[0])} ranks share one machine's memory; {memory or plan.reason}"
    elif in_memory:
        table = SizeTable((0,), ("hierarchical",))
        reason = f"memory inside each of {len(in_memory)} machines, between them {(plan.between or FIXED).reason}"
    elif setting != "auto":
        table = SizeTable((0,), (setting,))
        reason = f"auto would take {plan.reason}" if plan.seconds else plan.reason
    if memory and not in_memory:
        reason = f"{memory}; {reason}"
    return ScheduleChosen(
        generation=generation,
        setting=setting,
        ranges=tuple(zip(table.least, table.schedules, strict=True)),
        order=() if in_memory else plan.order,
        seconds=plan.seconds,
        reason=reason if setting == "auto" else asked + reason,
    )


def measure(mesh: Mesh, hosts: Hosts = ()) -> LinkMatrix:
    """All ranks of the mesh call it before anything else travels there, with the same hosts.

    Without hosts all pairs are measured. With them one pair inside each host, and the first ranks of the hosts.
    """
    if mesh.size < 2:
        return LinkMatrix(((Link(0.0, LEAST_PER_BYTE),),))
    measuring = _Measuring(mesh)
    first = measuring.run(rounds_of(mesh.size, hosts), LIMIT_SECONDS)
    again = measuring.run(packed(doubtful(first.figures)), AGAIN_SECONDS)
    known = {ends: figure.link for ends, figure in best_of([*first.figures, *again.figures]).items()}
    return msgspec.structs.replace(completed(mesh.size, known, hosts), seconds=first.seconds + again.seconds)


def doubtful(figures: Sequence[Figure]) -> list[Pair]:
    """Pairs with a direction that is much slower or faster than is usual here. Pure."""
    found = set()
    for kind in ("latency", "per_byte"):
        values = sorted(getattr(figure.link, kind) for figure in figures)
        for figure in figures:
            usual, value = values[len(values) // 2], getattr(figure.link, kind)
            if not usual / DOUBTFUL <= value <= usual * DOUBTFUL:
                found.add((min(figure.source, figure.target), max(figure.source, figure.target)))
    return sorted(found)


def best_of(figures: Sequence[Figure]) -> dict[Pair, Figure]:
    """The best figure for each direction: a disturbance makes a link look slower, and small bursts say least. Pure."""
    best: dict[Pair, Figure] = {}
    for figure in figures:
        ends = (figure.source, figure.target)
        known = best.get(ends, figure)
        surest = min(known, figure, key=lambda one: (-one.burst, one.link.per_byte))
        link = Link(min(known.link.latency, figure.link.latency), surest.link.per_byte)
        best[ends] = msgspec.structs.replace(surest, link=link)
    return best


class _Measuring:
    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._parent, self._children = parent_of(mesh.rank), children_of(mesh.rank, mesh.size)
        self._head = memoryview(bytearray(_HEADER.size))
        self._room = memoryview(bytearray(max(BURSTS)))  # its contents do not matter

    def run(self, rounds: Sequence[Sequence[Pair]], limit: float) -> _Figures:
        """Measure in rounds. Returns the figures of all ranks, the same on each of them."""
        if not rounds:
            return _Figures()
        self._gather(_Figures())  # wait for all ranks before any clock starts
        self._give(_Figures())
        began = time.perf_counter()
        found: list[Figure] = []
        for number, pairs in enumerate(rounds):
            for asking, answering in pairs:
                if self._mesh.rank == answering:
                    self._answer(asking)
                elif self._mesh.rank == asking:
                    left = limit - (time.perf_counter() - began)
                    found += self._ask(answering, left / (len(rounds) - number))
        figures = self._gather(_Figures(tuple(found)))
        return self._give(_Figures(figures, time.perf_counter() - began))

    def _gather(self, own: _Figures) -> tuple[Figure, ...]:
        """Send the figures of all ranks to rank 0, up a tree."""
        others = [self._take_figures(child) for child in self._children]
        figures = tuple(figure for each in (own, *others) for figure in each.figures)
        if self._parent is not None:
            self._post(self._parent, memoryview(msgspec.msgpack.encode(_Figures(figures))), 0)
        return figures

    def _give(self, figures: _Figures) -> _Figures:
        """Send rank 0's figures to all ranks, down the tree, the same to the last bit."""
        if self._parent is not None:
            figures = self._take_figures(self._parent)
        encoded = memoryview(msgspec.msgpack.encode(figures))
        for child in self._children:
            self._post(child, encoded, 0)
        self._mesh.drain()
        return figures

    def _take_figures(self, peer: int) -> _Figures:
        payload, _ = self._take(peer)
        try:
            return _decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise WireError(f"rank {peer} sent figures of its links that cannot be read: {error}") from None

    def _ask(self, peer: int, limit: float) -> list[Figure]:
        """Measure both directions of a link; nothing if there is no time left."""
        found: list[Figure] = []
        if limit > 0:
            self._exchange(peer, 0, 0)  # wait until the peer is done with its previous partner
            end = time.perf_counter() + limit
            there_and_back = self._exchange(peer, 0, 0)
            for _ in range(PINGS - 1):
                if time.perf_counter() + there_and_back > end:
                    break
                there_and_back = min(there_and_back, self._exchange(peer, 0, 0))
            for size in BURSTS:
                there, back = self._burst(peer, size, end)
                found = [
                    Figure(source, target, size, _link(there_and_back, taken, size))
                    for source, target, taken in ((self._mesh.rank, peer, there), (peer, self._mesh.rank, back))
                ]
                bytes_took = there + back - 2 * there_and_back
                if time.perf_counter() + 2 * there_and_back + GROWTH * bytes_took > end:
                    break
        self._post(peer, memoryview(b""), _ENOUGH)
        return found

    def _burst(self, peer: int, size: int, end: float) -> tuple[float, float]:
        """Seconds for `size` bytes to go there, and to come back. Measured at least once, then while time is left."""
        there, back = self._exchange(peer, size, 0), self._exchange(peer, 0, size)
        for _ in range(REPEATS - 1):
            if time.perf_counter() + there + back > end:
                break
            there = min(there, self._exchange(peer, size, 0))
            back = min(back, self._exchange(peer, 0, size))
        return there, back

    def _exchange(self, peer: int, given: int, wanted: int) -> float:
        """Send a message and return the seconds until its answer arrived."""
        started = time.perf_counter()
        self._post(peer, self._room[:given], wanted)
        self._take(peer)
        return time.perf_counter() - started

    def _answer(self, peer: int) -> None:
        while (wanted := self._take(peer)[1]) != _ENOUGH:
            if wanted > max(BURSTS):
                raise WireError(f"rank {peer} measures its link with {wanted} bytes; at most {max(BURSTS)} are usual")
            self._post(peer, self._room[:wanted], 0)

    def _post(self, peer: int, payload: memoryview, wanted: int) -> None:
        self._mesh.post(peer, _HEADER.pack(_MAGIC, payload.nbytes, wanted), payload)

    def _take(self, peer: int) -> tuple[memoryview, int]:
        """The payload of the next message, in memory that the next one overwrites; and what is wanted."""
        self._mesh.receive_into(peer, self._head)
        magic, size, wanted = _HEADER.unpack(self._head)
        if magic != _MAGIC:
            raise WireError(f"rank {peer} does not measure its links as this rank does: it sent {bytes(self._head)!r}")
        if size > _MOST_BYTES:
            raise WireError(f"rank {peer} announces {size} bytes of figures; at most {_MOST_BYTES} are sent")
        if size > self._room.nbytes:
            self._room = memoryview(bytearray(size))
        self._mesh.receive_into(peer, self._room[:size])
        return self._room[:size], wanted


def _link(there_and_back: float, taken: float, size: int) -> Link:
    return Link(there_and_back / 2, max(LEAST_PER_BYTE, (taken - there_and_back) / size))
