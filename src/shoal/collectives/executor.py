"""Runs one rank's program over a mesh: frames out, frames in, reduced or copied into place.

Every frame's header is compared with what this rank would have sent in the peer's place; a difference is
`WorkersDisagree`, which quotes both. Not here: the order of operations and the thread (`threaded_group`), and which
program is run (`ring`, `tree`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from shoal.codecs.codec import Codec
from shoal.codecs.identity import memory_of
from shoal.codecs.registry import codec_name
from shoal.collectives.dtypes import Combine, code_of, name_of
from shoal.collectives.group import Reduction
from shoal.collectives.schedule import Action, Program, Transfer
from shoal.errors import WorkersDisagree
from shoal.transport.mesh import Mesh
from shoal.wire.frames import HEADER_BYTES, WAITING, FrameHeader, Kind, ReductionCode, pack, unpack

# Received bytes wait here for the adding: small enough to stay in a core's cache, large enough that Python's work per
# block does not count. All-reduce of 100 MB, 2 ranks, blocks of 256 KB / 512 KB / 1 MB: 46.8 / 43.5 / 44.8 ms.
BLOCK_BYTES = 512 * 1024
# How often one rank tells another that it waits. A peer may never read it: all of them together fit into any socket
# buffer (54 KB), so that they never block what matters.
MOST_TELLS = 500

_NOTHING = memoryview(b"")
_REDUCTION_CODES = {
    None: ReductionCode.NONE,
    Reduction.SUM: ReductionCode.SUM,
    Reduction.MAX: ReductionCode.MAX,
    Reduction.MIN: ReductionCode.MIN,
}


@dataclass(frozen=True)
class Operation:
    """What every frame of one operation says about it."""

    kind: Kind
    sequence: int
    label: str
    dtype: torch.dtype
    elements: int  # of the whole operation
    reduction: Reduction | None = None
    combine: Combine | None = None  # how to reduce; None where nothing is


@dataclass(frozen=True)
class Segment:
    """A run of elements of one tensor, in place."""

    tensor: torch.Tensor  # one-dimensional, contiguous, on the CPU
    memory: memoryview  # its bytes


def segments_of(tensor: torch.Tensor, bounds: Sequence[tuple[int, int]]) -> list[Segment]:
    """Cut a one-dimensional contiguous CPU tensor."""
    memory = memory_of(tensor)
    width = tensor.dtype.itemsize
    return [Segment(tensor[start:stop], memory[start * width : stop * width]) for start, stop in bounds]


class Executor:
    """One per group; used by one thread."""

    def __init__(self, mesh: Mesh, codec: Codec, generation: int) -> None:
        self._mesh = mesh
        self._codec = codec
        self._generation = generation
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._block = memoryview(bytearray(BLOCK_BYTES))
        self._awaited: tuple[int, FrameHeader] | None = None  # peer and header, while one is waited for
        self._told: Counter[int] = Counter()  # by peer
        self._told_last = -1  # sequence of the last operation that a peer was told of
        mesh.on_stall = self._look_around

    def run(self, operation: Operation, program: Program, segments: Sequence[Segment]) -> None:
        """Return when the segments are whole and their memory is free to change."""
        for step in program.rounds:
            for transfer in step.sends:
                self._send(operation, transfer, segments[transfer.segment])
            for transfer in step.receives:
                self._receive(operation, transfer, segments[transfer.segment])
        self._mesh.drain()

    def _send(self, operation: Operation, transfer: Transfer, segment: Segment) -> None:
        payload = segment.memory if self._codec.raw else self._codec.encode(segment.tensor)
        self._mesh.post(transfer.peer, pack(self._expected(operation, transfer, segment)), payload)

    def _receive(self, operation: Operation, transfer: Transfer, segment: Segment) -> None:
        expected = self._expected(operation, transfer, segment)
        found = self._receive_header(transfer.peer, expected)
        if found != expected:
            raise self._disagreement(transfer.peer, expected, found)
        if not self._codec.raw:
            self._receive_encoded(operation, transfer, segment, found.payload)
        elif transfer.action is Action.COPY:
            self._mesh.receive_into(transfer.peer, segment.memory)
        else:
            self._receive_blocks(operation, transfer.peer, segment.memory)

    def _receive_header(self, peer: int, expected: FrameHeader) -> FrameHeader:
        self._awaited = (peer, expected)
        while True:
            self._mesh.receive_into(peer, self._header)
            found = unpack(self._header, generation=self._generation)
            if found.transfer != WAITING:
                self._awaited = None
                return found
            self._compare(peer, expected, found)

    def _receive_blocks(self, operation: Operation, peer: int, memory: memoryview) -> None:
        assert operation.combine is not None
        for start in range(0, memory.nbytes, BLOCK_BYTES):
            target = memory[start : start + BLOCK_BYTES]
            block = self._block[: target.nbytes]
            self._mesh.receive_into(peer, block)
            operation.combine(target, block)

    def _receive_encoded(self, operation: Operation, transfer: Transfer, segment: Segment, size: int) -> None:
        data = memoryview(bytearray(size))
        self._mesh.receive_into(transfer.peer, data)
        if transfer.action is Action.COPY:
            self._codec.decode(data, segment.tensor)
            return
        assert operation.combine is not None
        decoded = torch.empty_like(segment.tensor)
        self._codec.decode(data, decoded)
        operation.combine(segment.memory, memory_of(decoded))

    def _expected(self, operation: Operation, transfer: Transfer, segment: Segment) -> FrameHeader:
        """The header of this transfer: what we send, and what a peer that agrees with us sends."""
        return FrameHeader(
            kind=operation.kind,
            reduction=_REDUCTION_CODES[operation.reduction],
            codec=self._codec.wire_id,
            dtype=code_of(operation.dtype),
            generation=self._generation,
            sequence=operation.sequence,
            transfer=transfer.number,
            elements=operation.elements,
            payload=self._codec.encoded_bytes(len(segment.tensor), operation.dtype),
            label=operation.label,
        )

    def _look_around(self, heads: Mapping[int, bytes]) -> None:
        """Nothing comes from the peer we wait for: does another one show that it does something else?"""
        if self._awaited is None or self._awaited[1].kind is Kind.POINT_TO_POINT:
            return
        awaited, ours = self._awaited
        for peer, head in heads.items():
            if len(head) == HEADER_BYTES:
                self._compare(peer, ours, unpack(head, generation=self._generation))
        # Perhaps the other one waits as well, for somebody who waits for us: once per operation it is told.
        if ours.sequence != self._told_last and self._told[awaited] < MOST_TELLS:
            self._told_last = ours.sequence
            self._told[awaited] += 1
            self._mesh.post(awaited, pack(msgspec.structs.replace(ours, transfer=WAITING, payload=0)), _NOTHING)

    def _compare(self, peer: int, ours: FrameHeader, theirs: FrameHeader) -> None:
        """Raise if a peer at the same point is in another operation. It may be ahead, and what it waited in is past."""
        comparable = Kind.POINT_TO_POINT not in (ours.kind, theirs.kind) and ours.sequence == theirs.sequence
        if comparable and _describe(ours) != _describe(theirs):
            raise self._disagreement(peer, ours, theirs)

    def _disagreement(self, peer: int, ours: FrameHeader, theirs: FrameHeader) -> WorkersDisagree:
        mine, other = repr(ours.label), repr(theirs.label)
        if mine == other:
            mine, other = _describe(ours), _describe(theirs)
        if mine == other:
            mine, other = _describe_transfer(ours), _describe_transfer(theirs)
        return WorkersDisagree(
            f"rank {self._mesh.rank} is in {mine} while rank {peer} is in {other}; "
            "all workers must make the same calls in the same order"
        )


def _describe(header: FrameHeader) -> str:
    kind = header.kind.name.lower().replace("_", "-")
    reduction = f"{header.reduction.name.lower()} of " if header.reduction is not ReductionCode.NONE else ""
    what = f"{reduction}{header.elements} {name_of(header.dtype)}"
    return f"{kind} {header.label!r} (operation {header.sequence}: {what})"


def _describe_transfer(header: FrameHeader) -> str:
    return (
        f"{_describe(header)}, transfer {header.transfer} of {header.payload} bytes, codec {codec_name(header.codec)}"
    )
