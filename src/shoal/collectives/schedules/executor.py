"""Runs one rank's program over a mesh: frames out, frames in, reduced or copied into place.

Every frame's header is compared with the header that this rank would have sent in the peer's place; a difference raises
`WorkersDisagree`, which quotes both. When two values are combined, the lower rank's comes first, so that with two ranks
every schedule combines in the order of the ranks. Programs move the tensors' own bytes. Not here: encoded operations
(`encoded_reduce`), the order of operations and the thread (`threaded_group`), and which program is run (`choice`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import msgspec
import torch

from shoal.codecs.identity import Identity, memory_of
from shoal.collectives.agreement import describe, disagreement, reduction_code
from shoal.collectives.combining import combine
from shoal.collectives.dtypes import code_of
from shoal.collectives.exchanger import Operation
from shoal.collectives.schedules.schedule import Action, Program, Transfer
from shoal.errors import Refused, WireError
from shoal.transport.mesh.mesh import Mesh
from shoal.wire.frames import HEADER_BYTES, WAITING, FrameHeader, FrameKind, pack, unpack

# Bytes that are received before they are added: small enough to stay in a core's cache, large enough that Python's work
# per block does not matter. All-reduce of 100 MB, 2 ranks, blocks of 256 KB / 512 KB / 1 MB: 46.8 / 43.5 / 44.8 ms.
BLOCK_BYTES = 512 * 1024
# The most notices by which one rank tells another that it waits. The peer may never read them; all of them together
# (54 KB) fit into any socket buffer, so that they never block other frames.
MOST_TELLS = 500

_NOTHING = memoryview(b"")


class Segment:
    """A run of elements that may lie in several pieces of memory, in place."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Tensors: one-dimensional, contiguous, on the CPU, of one dtype."""
        self.tensors = tensors
        self.pieces = [memory_of(tensor) for tensor in tensors]
        self.elements = sum(map(len, tensors))

    def joined(self) -> torch.Tensor:
        """One tensor: the segment's own memory if that is one piece, else a copy."""
        return self.tensors[0] if len(self.tensors) == 1 else torch.cat(list(self.tensors))

    def fill(self, values: torch.Tensor) -> None:
        start = 0
        for tensor in self.tensors:
            tensor.copy_(values[start : start + len(tensor)])
            start += len(tensor)


def segments_of(tensors: Sequence[torch.Tensor], bounds: Sequence[tuple[int, int]]) -> list[Segment]:
    """Cut one-dimensional contiguous CPU tensors, taken as one run of elements."""
    ends = list(accumulate(map(len, tensors)))
    segments = []
    for start, stop in bounds:
        pieces = []
        for tensor, end in zip(tensors, ends, strict=True):
            begin = end - len(tensor)
            if begin < stop and start < end:
                pieces.append(tensor[max(start - begin, 0) : stop - begin])
        segments.append(Segment(pieces or [tensors[0][:0]]))
    return segments


class Executor:
    """One per group; used by one thread."""

    def __init__(self, mesh: Mesh, generation: int) -> None:
        self._mesh = mesh
        self._generation = generation
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._block = memoryview(bytearray(BLOCK_BYTES))
        self._awaited: tuple[int, FrameHeader] | None = None  # the peer and the header that this rank waits for
        self._told: Counter[int] = Counter()  # notices sent, by peer
        self._told_last = (-1, 0)  # sequence and turn of the operation of the last notice

    def run(self, operation: Operation, program: Program, segments: Sequence[Segment]) -> None:
        """Return when the segments are whole and their memory is free to change."""
        self.take_turn()
        for step in program.rounds:
            for transfer in step.sends:
                self._send(operation, transfer, segments[transfer.segment])
            for transfer in step.receives:
                self._receive(operation, transfer, segments[transfer.segment])
        self._mesh.drain()

    def take_turn(self) -> None:
        """Call this before an operation, since several executors may use one mesh in turns."""
        self._mesh.on_stall = self._look_around

    def missing(self) -> list[int]:
        """From any thread: the rank that this one waits for."""
        awaited = self._awaited
        return [] if awaited is None else [awaited[0]]

    def _send(self, operation: Operation, transfer: Transfer, segment: Segment) -> None:
        self._mesh.post(transfer.peer, pack(self._expected(operation, transfer, segment)), *segment.pieces)

    def _receive(self, operation: Operation, transfer: Transfer, segment: Segment) -> None:
        expected = self._expected(operation, transfer, segment)
        found = self.receive_header(transfer.peer, expected)
        if found != expected:
            raise disagreement((self._mesh.rank, expected), (transfer.peer, found))
        if transfer.action is Action.COPY:
            for piece in segment.pieces:
                self._mesh.receive_into(transfer.peer, piece)
        else:
            self._receive_blocks(operation, transfer.peer, segment.pieces)

    def receive_header(self, peer: int, expected: FrameHeader) -> FrameHeader:
        """The peer's next header, whatever it says. `expected` lets ranks that wait for each other find out why."""
        self._awaited = (peer, expected)
        while True:
            self._mesh.receive_into(peer, self._header)
            found = self._unpacked(peer, self._header)
            if found.transfer != WAITING:
                self._awaited = None
                return found
            self._compare(peer, expected, found)

    def _receive_blocks(self, operation: Operation, peer: int, pieces: Sequence[memoryview]) -> None:
        """Bytes that are to be reduced arrive in blocks that may cover several pieces."""
        reduce_into = self._reducing(operation, peer)
        left = sum(piece.nbytes for piece in pieces)
        filled = used = 0  # bytes of the block that were received, and that were reduced
        for piece in pieces:
            start = 0
            while start < piece.nbytes:
                if used == filled:
                    filled, used = min(BLOCK_BYTES, left), 0
                    self._mesh.receive_into(peer, self._block[:filled])
                    left -= filled
                size = min(piece.nbytes - start, filled - used)
                reduce_into(piece[start : start + size], self._block[used : used + size])
                start, used = start + size, used + size

    def _reducing(self, operation: Operation, peer: int) -> Callable[[memoryview, memoryview], None]:
        """How bytes from that peer are reduced into this rank's own."""
        assert operation.reduction is not None
        combined = combine(operation.dtype, operation.reduction)
        if peer < self._mesh.rank:
            return lambda own, received: combined(own, received, own)
        return lambda own, received: combined(own, own, received)

    def _expected(self, operation: Operation, transfer: Transfer, segment: Segment) -> FrameHeader:
        """The header of this transfer, which a peer that agrees with us has too."""
        return self.header(operation, transfer.number, segment.elements * operation.dtype.itemsize)

    def header(
        self, operation: Operation, transfer: int, payload: int, *, codec: int = Identity.wire_id
    ) -> FrameHeader:
        return FrameHeader(
            kind=operation.kind,
            reduction=reduction_code(operation.reduction),
            codec=codec,
            dtype=code_of(operation.dtype),
            generation=self._generation,
            sequence=operation.sequence,
            turn=operation.turn,
            transfer=transfer,
            elements=operation.elements,
            payload=payload,
            label=operation.label,
        )

    def _look_around(self, heads: Mapping[int, bytes]) -> None:
        """Nothing comes from the awaited peer: look whether another peer is in another operation."""
        if self._awaited is None or self._awaited[1].kind is FrameKind.POINT_TO_POINT:
            return
        awaited, ours = self._awaited
        for peer, head in heads.items():
            if len(head) == HEADER_BYTES:
                self._compare(peer, ours, self._unpacked(peer, head))
        # The awaited peer may wait too, for a rank that waits for us: tell it once per turn of an operation.
        if _point(ours) != self._told_last and self._told[awaited] < MOST_TELLS:
            self._told_last = _point(ours)
            self._told[awaited] += 1
            self._mesh.post(awaited, pack(msgspec.structs.replace(ours, transfer=WAITING, payload=0)), _NOTHING)

    def _unpacked(self, peer: int, head: bytes | memoryview) -> FrameHeader:
        try:
            return unpack(head, generation=self._generation)
        except (WireError, Refused) as error:
            raise type(error)(f"from rank {peer}: {error}") from None

    def _compare(self, peer: int, ours: FrameHeader, theirs: FrameHeader) -> None:
        """Raise if a peer at the same point is in another operation. Headers of other points prove nothing."""
        comparable = FrameKind.POINT_TO_POINT not in (ours.kind, theirs.kind) and _point(ours) == _point(theirs)
        if comparable and describe(ours) != describe(theirs):
            raise disagreement((self._mesh.rank, ours), (peer, theirs))


def _point(header: FrameHeader) -> tuple[int, int]:
    """Where in the order of a group's work a header belongs."""
    return header.sequence, header.turn
