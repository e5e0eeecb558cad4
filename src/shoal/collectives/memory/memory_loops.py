"""The operations of a team in Python: for types and reductions that the C loops lack, and for installs without them.

The loops use the same notices, phases and slots as the C loops (`native/operations.h`), so that one team may use both.
Sums are made in the order of the ranks. `Differs` means that a rank is in another operation, `Garbled` that its notice
is impossible, `Unreadable` that its memory cannot be read at the address in its notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from shoal.codecs.identity import memory_of
from shoal.collectives.agreement import reduction_code
from shoal.collectives.combining import Combine, combine
from shoal.collectives.dtypes import code_of
from shoal.collectives.exchanger import Operation
from shoal.collectives.group import Reduction
from shoal.collectives.memory.memory_notice import Said, pack_notice, parse_notice, share_of
from shoal.errors import WireError
from shoal.transport.memory import cross_memory
from shoal.transport.memory.arena import address_of
from shoal.transport.memory.team import NOTICE_BYTES, NOTICES, OPERATIONS, ROUNDS, SLOT_BYTES, SLOTS, Team
from shoal.transport.native_layout import LINE
from shoal.wire.frames import COUNTS, FrameHeader, FrameKind, pack, pack_counts

Loop = Callable[[bytes], None]  # takes the statement
Output = tuple[int, int, torch.Tensor]  # a peer, the number of one of its tensors, and where to copy it

BLOCK_BYTES = 512 * 1024  # read and reduced at a time


class Differs(Exception):
    """A rank of the team is in another operation than this one."""

    def __init__(self, peer: int, entry: int = -1) -> None:
        """`entry`: number of the tensor whose size differs; -1: the operations differ."""
        super().__init__(peer, entry)
        self.peer, self.entry = peer, entry


class Garbled(Exception):
    """A rank of the team wrote an impossible notice; `args` says what is wrong with it."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(why)
        self.peer = peer


class Unreadable(Exception):
    """The memory that a rank's notice names cannot be read."""

    def __init__(self, peer: int, error: int) -> None:
        """`error`: the `errno`."""
        super().__init__(peer, error)
        self.peer, self.error = peer, error


@dataclass(frozen=True)
class MemoryWays:
    """Which way bytes take, the same on all ranks of a team."""

    reads_memory: bool  # large tensors are read from their owner's private memory; otherwise they pass through slots
    is_native: bool  # use the C loops
    reads_to_reduce: bool = False  # read large tensors in all-reduce too, instead of using slots
    small: int = 128 * 1024  # bytes; tensors up to this size pass through slots in one phase
    piece: int = 512 * 1024  # bytes of a rank's part of a chunk, at most
    block: int = 32 * 1024  # bytes that are read and added at a time: within a core's cache


def small_for(size: int) -> int:
    """The most bytes for which every rank of a team sums everything itself: in one phase, but n times the work."""
    return min(SLOT_BYTES, max(64 * 1024, 2 * 1024 * 1024 // size**2 // LINE * LINE))


def statement_of(operation: Operation, generation: int, source: int) -> bytes:
    """What every rank says about an operation, as a frame's header; ranks that agree have the same bytes."""
    before, after = _around_counts(operation.kind, operation.reduction, operation.dtype, operation.label)
    return before + pack_counts(generation, operation.sequence, operation.turn, source, operation.elements, 0) + after


@lru_cache(maxsize=1024)
def _around_counts(kind: FrameKind, reduction: Reduction | None, dtype: torch.dtype, label: str) -> tuple[bytes, bytes]:
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
        # Allocated by torch, which aligns memory: libraries treat elements before the first and behind the last whole
        # cache line differently, so all ranks must compute at the same distance from the start of a line.
        self._block, self._total = (memory_of(torch.empty(BLOCK_BYTES, dtype=torch.uint8)) for _ in range(2))

    def said_by(self, rank: int) -> Said:
        """A rank's notice of the operation that runs, or has just failed."""
        start = self._notice_at()
        copy = bytes(self._team.arena(rank)[start : start + NOTICE_BYTES])
        try:
            return parse_notice(copy)
        except WireError as error:
            raise Garbled(rank, str(error)) from None

    def all_reduce(self, operation: Operation, tensors: Sequence[torch.Tensor], said: bytes) -> None:
        pieces = [memory_of(tensor) for tensor in tensors]
        size = sum(piece.nbytes for piece in pieces)
        is_in_slot = size <= self._ways.small or not self._ways.reads_to_reduce
        if operation.scale != 1.0:
            for tensor in tensors:
                tensor.mul_(operation.scale)
        if is_in_slot:
            self._fill_slot(_cut(pieces, 0, SLOT_BYTES))
        all_said = self._meet(said, tensors, is_in_slot)
        sizes = tuple(piece.nbytes for piece in pieces)
        for rank, other in enumerate(all_said):
            if other.sizes != sizes or other.is_in_slot != is_in_slot:
                raise Differs(rank)
        reduce = _combine(operation)
        if is_in_slot:
            self._reduce_slots(pieces, size, reduce)
        else:
            self._reduce_reading(pieces, all_said, reduce)
        self._team.count(OPERATIONS)

    def _reduce_slots(self, pieces: Sequence[memoryview], size: int, reduce: Combine) -> None:
        """One phase for each full slot: every rank sums everything."""
        for start in range(0, max(size, 1), SLOT_BYTES):
            if start:
                self._fill_slot(_cut(pieces, start, start + SLOT_BYTES))
                self._synchronize()
            slots, at = [self._slot(rank) for rank in range(self._team.size)], 0
            for piece in _cut(pieces, start, start + SLOT_BYTES):
                for begin in range(0, piece.nbytes, BLOCK_BYTES):
                    place = piece[begin : begin + BLOCK_BYTES]
                    total, stop = self._total[: place.nbytes], at + place.nbytes
                    first, *others = (slot[at:stop] for slot in slots)
                    for other in others:
                        reduce(total, first, other)
                        first = total
                    place[:] = total
                    at = stop
            if size:
                self._team.count(ROUNDS)

    def _reduce_reading(self, pieces: Sequence[memoryview], said: Sequence[Said], reduce: Combine) -> None:
        """Every rank owns a part of each tensor: it reads that part from the others and adds; they read the sum."""
        for number, piece in enumerate(pieces):
            start, stop = self._part(piece.nbytes, self._team.rank)
            for at in range(start, stop, BLOCK_BYTES):
                own = piece[at : min(at + BLOCK_BYTES, stop)]
                total = self._total[: own.nbytes]
                for rank in range(self._team.size):
                    value = own if rank == self._team.rank else self._read(rank, said[rank].addresses[number] + at, own)
                    if rank == 0:
                        total[:] = value
                    else:
                        reduce(total, total, value)
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
    ) -> None:
        to, rank = memory_of(output), self._team.rank
        all_said = self._meet_with_entries(said, parts, self._ways.reads_to_reduce)
        for peer, other in enumerate(all_said):
            if len(other.sizes) != self._team.size or other.sizes[rank] != to.nbytes:
                raise Differs(peer, rank)
        reduce, share = _combine(operation), all_said[rank].share
        rounds = _rounds(all_said)
        for number in range(rounds):
            start, stop = (0, to.nbytes) if rounds == 1 else (number * share, min(to.nbytes, (number + 1) * share))
            for at in range(start, stop, BLOCK_BYTES):
                place = to[at : min(at + BLOCK_BYTES, stop)]
                total = self._total[: place.nbytes]
                for peer, other in enumerate(all_said):
                    value = self._entry_block(parts, peer, other, (rank, at, at - number * share), place)
                    if peer == 0:
                        total[:] = value
                    else:
                        reduce(total, total, value)
                place[:] = total
            self._next_round(parts, all_said[rank], number, rounds)
        self._finish(all_said)

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
        if said.is_in_slot:
            start = number * said.share + in_share
            return self._slot(peer)[start : start + like.nbytes]
        return self._read(peer, said.addresses[number] + at, like)

    def exchange(self, inputs: Sequence[torch.Tensor], outputs: Sequence[Output], said: bytes) -> None:
        all_said = self._meet_with_entries(said, inputs, self._ways.reads_memory)
        for peer, index, output in outputs:
            sizes = all_said[peer].sizes
            if index >= len(sizes) or sizes[index] != output.nbytes:
                raise Differs(peer, index)
        rounds = _rounds(all_said)
        for number in range(rounds):
            for peer, index, output in outputs:
                self._take(inputs, (peer, index, output), all_said[peer], number)
            self._next_round(inputs, all_said[self._team.rank], number, rounds)
        self._finish(all_said)

    def _take(self, inputs: Sequence[torch.Tensor], wanted: Output, said: Said, number: int) -> None:
        """Take the bytes of one round."""
        peer, index, output = wanted
        to, at = memory_of(output), number * said.share
        if said.is_in_slot and peer != self._team.rank:
            if to.nbytes > at:
                start, size = index * said.share, min(said.share, to.nbytes - at)
                to[at : at + size] = self._slot(peer)[start : start + size]
        elif number == 0 and peer == self._team.rank:
            output.copy_(inputs[index])
        elif number == 0 and to.nbytes:
            self._read_into(peer, said.addresses[index], to)

    # Notices, slots and rounds

    def _meet(self, said: bytes, tensors: Sequence[torch.Tensor], is_in_slot: bool) -> list[Said]:
        """Write this rank's notice, wait for all others, and compare. Returns all notices, each copied once."""
        arena, start = self._team.arena(self._team.rank), self._notice_at()
        entries = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]
        pack_notice(arena[start : start + NOTICE_BYTES], said, entries, is_in_slot=is_in_slot)
        self._synchronize()
        all_said = []
        for rank in range(self._team.size):
            all_said.append(self.said_by(rank))
            if all_said[rank].statement != said:
                raise Differs(rank)
        return all_said

    def _meet_with_entries(self, said: bytes, entries: Sequence[torch.Tensor], reads: bool) -> list[Said]:
        share = share_of(len(entries))
        sizes = [entry.nbytes for entry in entries]
        is_in_slot = not reads or (max(sizes, default=0) <= share and sum(sizes) <= self._ways.small)
        if is_in_slot:
            self._put_round(entries, share, 0)
        return self._meet(said, entries, is_in_slot)

    def _next_round(self, entries: Sequence[torch.Tensor], own: Said, number: int, rounds: int) -> None:
        self._team.count(ROUNDS)
        if number + 1 < rounds:
            if own.is_in_slot:
                self._put_round(entries, own.share, number + 1)
            self._synchronize()

    def _finish(self, all_said: Sequence[Said]) -> None:
        if not all(said.is_in_slot for said in all_said):
            self._end_reading()
        self._team.count(OPERATIONS)

    def _end_reading(self) -> None:
        self._team.look()  # raises if an owner was gone while its memory was read
        self._synchronize()

    def _put_round(self, entries: Sequence[torch.Tensor], share: int, number: int) -> None:
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
        """Start and stop of the part that a rank owns of a tensor of `size` bytes."""
        part = -(-size // self._team.size // LINE) * LINE + LINE
        return min(size, part * rank), min(size, part * (rank + 1))

    def _read(self, rank: int, address: int, like: memoryview) -> memoryview:
        block = self._block[: like.nbytes]
        self._read_into(rank, address, block)
        return block

    def _read_into(self, rank: int, address: int, to: memoryview) -> None:
        try:
            cross_memory.read(self._team.processes[rank], address, address_of(to), to.nbytes)
        except OSError as error:
            self._team.look(awaited=rank)
            raise Unreadable(rank, error.errno or 0) from None


def _rounds(all_said: Sequence[Said]) -> int:
    """How many times slots are filled; 1 if nothing passes through slots."""
    return max(-(-max(said.sizes, default=0) // said.share) if said.is_in_slot else 1 for said in all_said) or 1


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
