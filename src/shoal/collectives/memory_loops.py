"""The operations of a team in Python: for types and reductions that the C loops lack, and where those were not built.

They use the same notices, phases and slots as the C loops (`native/operations.h`), so that one team may use both. Each
returns None, or the rank that does something else and the number of the tensor whose size differs (-1: the operations
do).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from shoal.codecs.identity import memory_of
from shoal.collectives.agreement import reduction_code
from shoal.collectives.dtypes import Combine, code_of, combine
from shoal.collectives.engine import Operation
from shoal.collectives.group import Reduction
from shoal.transport import cross_memory
from shoal.transport.arena import address_of
from shoal.transport.team import (
    MOST_ENTRIES,
    NOTICE_BYTES,
    NOTICES,
    OPERATIONS,
    ROUNDS,
    SLOT_BYTES,
    SLOTS,
    Team,
)
from shoal.wire.frames import COUNTS, HEADER_BYTES, FrameHeader, Kind, pack, pack_counts

Culprit = tuple[int, int]
Loop = Callable[[bytes], Culprit | None]  # given the statement
Output = tuple[int, int, torch.Tensor]  # a peer, the number of its entry, where that goes

BLOCK_BYTES = 512 * 1024  # read and reduced at a time
_HEAD = struct.Struct("=128sIId48x")  # statement, count of entries, whether they are in the slot, scale
_ENTRY = struct.Struct("=QQ")  # address, bytes
LINE = 64


@dataclass(frozen=True)
class MemoryWays:
    """Which way bytes take, the same on all ranks of a team."""

    reads_memory: bool  # large tensors are read where they lie; otherwise they pass through slots
    is_native: bool
    reads_to_reduce: bool = False  # so in all-reduce too, where slots would be another way
    small: int = 128 * 1024  # bytes; up to here through slots in one phase
    piece: int = 512 * 1024  # bytes of a rank's part of a chunk, at most
    block: int = 32 * 1024  # bytes that are read and added at a time: within a core's cache


def small_for(size: int) -> int:
    """Up to how many bytes every rank of such a team adds everything up: one phase, but n times the work."""
    return min(SLOT_BYTES, max(64 * 1024, 2 * 1024 * 1024 // size**2 // LINE * LINE))


@dataclass(frozen=True)
class Said:
    """One rank's notice of an operation."""

    statement: bytes
    is_staged: bool
    scale: float
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]  # bytes

    @property
    def share(self) -> int:
        """Bytes of the slot that each entry has."""
        return SLOT_BYTES // max(1, len(self.sizes)) // LINE * LINE


def statement_of(operation: Operation, generation: int, source: int) -> bytes:
    """What every rank says about an operation, as a frame's header: all say the same."""
    before, after = _around_counts(operation.kind, operation.reduction, operation.dtype, operation.label)
    return before + pack_counts(generation, operation.sequence, source, operation.elements, 0) + after


@lru_cache(maxsize=1024)
def _around_counts(kind: Kind, reduction: Reduction | None, dtype: torch.dtype, label: str) -> tuple[bytes, bytes]:
    """The parts of a header that most operations share: packing them takes longer than a small sum."""
    header = FrameHeader(
        kind=kind,
        reduction=reduction_code(reduction),
        codec=0,
        dtype=code_of(dtype),
        generation=0,
        sequence=0,
        transfer=0,
        elements=0,
        payload=0,
        label=label,
    )
    packed = pack(header)
    return packed[: COUNTS.start], packed[COUNTS.stop :]


class MemoryLoops:
    def __init__(self, team: Team, ways: MemoryWays) -> None:
        self._team = team
        self._ways = ways
        self._block = memoryview(bytearray(BLOCK_BYTES))

    def said_by(self, rank: int) -> Said:
        """In the operation that runs, or that has just failed."""
        arena, start = self._team.arena(rank), self._notice_at()
        statement, count, staged, scale = _HEAD.unpack_from(arena, start)
        count = min(count, MOST_ENTRIES)
        entries = [_ENTRY.unpack_from(arena, start + _HEAD.size + _ENTRY.size * number) for number in range(count)]
        addresses, sizes = tuple(entry[0] for entry in entries), tuple(entry[1] for entry in entries)
        return Said(statement[:HEADER_BYTES], bool(staged), scale, addresses, sizes)

    def all_reduce(self, operation: Operation, tensors: Sequence[torch.Tensor], said: bytes) -> Culprit | None:
        pieces = [memory_of(tensor) for tensor in tensors]
        size = sum(piece.nbytes for piece in pieces)
        is_staged = size <= self._ways.small or not self._ways.reads_to_reduce
        if operation.scale != 1.0:
            for tensor in tensors:
                tensor.mul_(operation.scale)
        if is_staged:
            self._fill_slot(_cut(pieces, 0, SLOT_BYTES))
        culprit = self._meet(said, tensors, is_staged)
        sizes = tuple(piece.nbytes for piece in pieces)
        all_said = [self.said_by(rank) for rank in range(self._team.size)]
        for rank, other in enumerate(all_said):
            if culprit is None and (other.sizes != sizes or other.is_staged != is_staged):
                culprit = (rank, -1)
        if culprit is not None:
            return culprit
        reduce_into = _combine(operation)
        if is_staged:
            self._reduce_slots(pieces, size, reduce_into)
        else:
            self._reduce_reading(pieces, all_said, reduce_into)
        self._team.count(OPERATIONS)
        return None

    def _reduce_slots(self, pieces: Sequence[memoryview], size: int, reduce_into: Combine) -> None:
        """One phase for each slot full: everybody sums everything."""
        for start in range(0, max(size, 1), SLOT_BYTES):
            if start:
                self._fill_slot(_cut(pieces, start, start + SLOT_BYTES))
                self._synchronize()
            at = 0
            for piece in _cut(pieces, start, start + SLOT_BYTES):
                piece[:] = self._slot(0)[at : at + piece.nbytes]
                for rank in range(1, self._team.size):
                    reduce_into(piece, self._slot(rank)[at : at + piece.nbytes])
                at += piece.nbytes
            if size:
                self._team.count(ROUNDS)

    def _reduce_reading(self, pieces: Sequence[memoryview], said: Sequence[Said], reduce_into: Combine) -> None:
        """Every rank owns a part of each tensor: it reads that part from the others, adds, and they read the sum."""
        for number, piece in enumerate(pieces):
            start, stop = self._part(piece.nbytes, self._team.rank)
            for at in range(start, stop, BLOCK_BYTES):
                own = piece[at : min(at + BLOCK_BYTES, stop)]
                total = np.empty(own.nbytes, np.uint8).data
                for rank in range(self._team.size):
                    value = own if rank == self._team.rank else self._read(rank, said[rank].addresses[number] + at, own)
                    if rank == 0:
                        total[:] = value
                    else:
                        reduce_into(total, value)
                own[:] = total
        self._synchronize()
        for number, piece in enumerate(pieces):
            for step in range(1, self._team.size):
                owner = (self._team.rank + step) % self._team.size
                start, stop = self._part(piece.nbytes, owner)
                if stop > start:
                    self._read_into(owner, said[owner].addresses[number] + start, piece[start:stop])
        self._end_reading()

    def reduce_scatter(
        self, operation: Operation, parts: Sequence[torch.Tensor], output: torch.Tensor, said: bytes
    ) -> Culprit | None:
        to, rank = memory_of(output), self._team.rank
        culprit = self._meet_with_entries(said, parts, self._ways.reads_to_reduce)
        all_said = [self.said_by(peer) for peer in range(self._team.size)]
        for peer, other in enumerate(all_said):
            if culprit is None and (len(other.sizes) != self._team.size or other.sizes[rank] != to.nbytes):
                culprit = (peer, rank)
        if culprit is not None:
            return culprit
        reduce_into, share = _combine(operation), all_said[rank].share
        rounds = _rounds(all_said)
        for number in range(rounds):
            start, stop = (0, to.nbytes) if rounds == 1 else (number * share, min(to.nbytes, (number + 1) * share))
            for at in range(start, stop, BLOCK_BYTES):
                place = to[at : min(at + BLOCK_BYTES, stop)]
                total = np.empty(place.nbytes, np.uint8).data
                for peer, other in enumerate(all_said):
                    value = self._entry_block(parts, peer, other, (rank, at, at - number * share), place)
                    if peer == 0:
                        total[:] = value
                    else:
                        reduce_into(total, value)
                place[:] = total
            self._next_round(parts, all_said[rank], number, rounds)
        self._finish(all_said)
        return None

    def _entry_block(
        self,
        parts: Sequence[torch.Tensor],
        peer: int,
        said: Said,
        where: tuple[int, int, int],  # number of the entry, bytes from its start, bytes from the start of its share
        like: memoryview,
    ) -> memoryview:
        number, at, in_share = where
        if peer == self._team.rank:
            return memory_of(parts[number])[at : at + like.nbytes]
        if said.is_staged:
            start = number * said.share + in_share
            return self._slot(peer)[start : start + like.nbytes]
        return self._read(peer, said.addresses[number] + at, like)

    def exchange(self, inputs: Sequence[torch.Tensor], outputs: Sequence[Output], said: bytes) -> Culprit | None:
        culprit = self._meet_with_entries(said, inputs, self._ways.reads_memory)
        all_said = [self.said_by(peer) for peer in range(self._team.size)]
        for peer, index, output in outputs:
            sizes = all_said[peer].sizes
            if culprit is None and (index >= len(sizes) or sizes[index] != output.nbytes):
                culprit = (peer, index)
        if culprit is not None:
            return culprit
        rounds = _rounds(all_said)
        for number in range(rounds):
            for peer, index, output in outputs:
                self._take(inputs, (peer, index, output), all_said[peer], number)
            self._next_round(inputs, all_said[self._team.rank], number, rounds)
        self._finish(all_said)
        return None

    def _take(self, inputs: Sequence[torch.Tensor], wanted: Output, said: Said, number: int) -> None:
        """What comes in one round."""
        peer, index, output = wanted
        to, at = memory_of(output), number * said.share
        if said.is_staged and peer != self._team.rank:
            if to.nbytes > at:
                start, size = index * said.share, min(said.share, to.nbytes - at)
                to[at : at + size] = self._slot(peer)[start : start + size]
        elif number == 0 and peer == self._team.rank:
            output.copy_(inputs[index])
        elif number == 0 and to.nbytes:
            self._read_into(peer, said.addresses[index], to)

    # Notices, slots and rounds

    def _meet(self, said: bytes, tensors: Sequence[torch.Tensor], is_staged: bool) -> Culprit | None:
        arena, start = self._team.arena(self._team.rank), self._notice_at()
        _HEAD.pack_into(arena, start, said, len(tensors), is_staged, 1.0)
        for number, tensor in enumerate(tensors):
            _ENTRY.pack_into(arena, start + _HEAD.size + _ENTRY.size * number, tensor.data_ptr(), tensor.nbytes)
        self._synchronize()
        differing = (rank for rank in range(self._team.size) if self.said_by(rank).statement != said)
        culprit = next(differing, None)
        return None if culprit is None else (culprit, -1)

    def _meet_with_entries(self, said: bytes, entries: Sequence[torch.Tensor], reads: bool) -> Culprit | None:
        share = SLOT_BYTES // max(1, len(entries)) // LINE * LINE
        sizes = [entry.nbytes for entry in entries]
        is_staged = not reads or (max(sizes, default=0) <= share and sum(sizes) <= self._ways.small)
        if is_staged:
            self._stage(entries, share, 0)
        return self._meet(said, entries, is_staged)

    def _next_round(self, entries: Sequence[torch.Tensor], own: Said, number: int, rounds: int) -> None:
        self._team.count(ROUNDS)
        if number + 1 < rounds:
            if own.is_staged:
                self._stage(entries, own.share, number + 1)
            self._synchronize()

    def _finish(self, all_said: Sequence[Said]) -> None:
        if not all(said.is_staged for said in all_said):
            self._end_reading()
        self._team.count(OPERATIONS)

    def _end_reading(self) -> None:
        self._team.look()  # what was read was still there
        self._synchronize()

    def _stage(self, entries: Sequence[torch.Tensor], share: int, number: int) -> None:
        slot = self._slot(self._team.rank)
        for index, entry in enumerate(entries):
            piece = memory_of(entry)[number * share : (number + 1) * share]
            slot[index * share : index * share + piece.nbytes] = piece

    def _fill_slot(self, pieces: Sequence[memoryview]) -> None:
        slot, at = self._slot(self._team.rank), 0
        for piece in pieces:
            slot[at : at + piece.nbytes] = piece
            at += piece.nbytes

    def _synchronize(self) -> None:
        self._team.signal()
        self._team.await_all(self._team.phase)

    def _notice_at(self) -> int:
        return NOTICES + self._team.word(self._team.rank, OPERATIONS) % 2 * NOTICE_BYTES

    def _slot(self, rank: int) -> memoryview:
        start = SLOTS + self._team.word(self._team.rank, ROUNDS) % 2 * SLOT_BYTES
        return self._team.arena(rank)[start : start + SLOT_BYTES]

    def _part(self, size: int, rank: int) -> tuple[int, int]:
        """What a rank owns of a tensor of so many bytes."""
        part = -(-size // self._team.size // LINE) * LINE + LINE
        return min(size, part * rank), min(size, part * (rank + 1))

    def _read(self, rank: int, address: int, like: memoryview) -> memoryview:
        block = self._block[: like.nbytes]
        self._read_into(rank, address, block)
        return block

    def _read_into(self, rank: int, address: int, to: memoryview) -> None:
        try:
            cross_memory.read(self._team.processes[rank], address, address_of(to), to.nbytes)
        except OSError:
            self._team.look(awaited=rank)
            raise


def _rounds(all_said: Sequence[Said]) -> int:
    """How many slots full it takes; 1 where nothing goes through slots."""
    return max(-(-max(said.sizes, default=0) // said.share) if said.is_staged else 1 for said in all_said) or 1


def _cut(pieces: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Bytes start..stop of all pieces taken as one run."""
    found, begin = [], 0
    for piece in pieces:
        if begin < stop and start < begin + piece.nbytes:
            found.append(piece[max(0, start - begin) : stop - begin])
        begin += piece.nbytes
    return found


def _combine(operation: Operation) -> Combine:
    assert operation.reduction is not None
    return combine(operation.dtype, operation.reduction)
