"""An exchanger for ranks of one machine: small tensors pass through slots, large ones are read from private memory.

Every rank writes down its operation and where its tensors are, and compares what all ranks wrote; then it takes what it
needs from the others. No rank writes into another's memory. Sums are made in the order of the ranks, whichever way the
bytes take. The loops are in C (`native`) if the extension was built and has the type, else in Python (`memory_loops`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache, partial
from types import ModuleType

import msgspec
import torch

from shoal.collectives.agreement import disagreement, reduction_code
from shoal.collectives.combining import has_loop
from shoal.collectives.dtypes import code_of
from shoal.collectives.exchanger import Exchanger, Operation
from shoal.collectives.group import Reduction
from shoal.collectives.memory.memory_loops import (
    Differs,
    Garbled,
    Loop,
    MemoryLoops,
    MemoryWays,
    Unreadable,
    statement_of,
)
from shoal.errors import PeerLost, Refused, ShoalError, WireError, WorkersDisagree
from shoal.transport.memory.team import MOST_ENTRIES, SLOT_BYTES, Team, in_group_ranks
from shoal.transport.native import native
from shoal.transport.native_layout import DISAGREE, DONE, GARBLED, LATE, LINE, STOPPED
from shoal.wire.frames import unpack

# Seconds of spinning on a word before sleeping, if every rank has a core: waking up takes 50 us, and more on a virtual
# machine. A thread that works beside the script's thread spins less, because it takes that time from the script.
SPIN = 200e-6
SPIN_BESIDE = 20e-6
_SCALED_TYPES = (torch.float32, torch.float64)


class MemoryExchanger(Exchanger):
    needs_a_core = True

    def __init__(self, team: Team, ways: MemoryWays, generation: int, ranks: Sequence[int] | None = None) -> None:
        """The exchanger owns the team from now on. `ranks`: ranks in the group, by place in the team; for errors."""
        self.rank, self.size = team.rank, team.size
        self.bytes_sent = 0
        self._team = team
        self._ranks = list(range(team.size) if ranks is None else ranks)
        self._generation = generation
        self._loops = MemoryLoops(team, ways)
        self._native: ModuleType | None = native if ways.is_native else None
        self._handle: object = None
        self._may_spin = False
        if self._native is not None:
            cores = len(os.sched_getaffinity(0))
            self._may_spin = team.size <= cores
            spin = SPIN_BESIDE if self._may_spin else 0.0
            limits = (team.limits.stopped, team.limits.late)
            piece = ways.piece if ways.reads_to_reduce else min(ways.piece, SLOT_BYTES // team.size // LINE * LINE)
            sizes = (ways.small, piece, ways.block)
            settings = (cores, spin, ways.reads_memory, ways.reads_to_reduce, *sizes, *limits)
            self._handle = self._native.team(team.rank, team.addresses, team.processes, team.pidfds, settings)

    @property
    def idle_seconds(self) -> float:  # type: ignore[override]  # counted where the waiting is
        return self._team.idle_seconds + (0.0 if self._native is None else self._native.idle(self._handle))

    def is_awaited(self, awaited: bool) -> None:
        if self._may_spin and self._native is not None:
            self._native.spin(self._handle, SPIN if awaited else SPIN_BESIDE)

    def all_reduce(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        if operation.scale != 1.0 and operation.dtype not in _SCALED_TYPES:
            for tensor in tensors:
                tensor.mul_(operation.scale)
            operation = msgspec.structs.replace(operation, scale=1.0)
        self.bytes_sent += 2 * (self.size - 1) * operation.elements * operation.dtype.itemsize // self.size
        for start in range(0, len(tensors), MOST_ENTRIES):
            some = tensors[start : start + MOST_ENTRIES]
            if self._native is not None and _has_loop(operation):
                ended = self._native.all_reduce(
                    self._handle,
                    self._statement(operation),
                    _entries(some),
                    operation.scale,
                    *_codes(operation),
                )
                self._check(ended, operation)
            else:
                self._in_python(operation, partial(self._loops.all_reduce, operation, some))

    def reduce_scatter(self, operation: Operation, output: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        self.bytes_sent += (self.size - 1) * output.nbytes
        is_native = self._native is not None and _has_loop(operation)
        if operation.scale != 1.0 and not (is_native and operation.dtype in _SCALED_TYPES):
            parts = [part * operation.scale for part in parts]
            operation = msgspec.structs.replace(operation, scale=1.0)
        if self._native is not None and is_native:
            ended = self._native.reduce_scatter(
                self._handle,
                self._statement(operation),
                _entries(parts),
                operation.scale,
                output.data_ptr(),
                output.nbytes,
                *_codes(operation),
            )
            self._check(ended, operation)
        else:
            self._in_python(operation, partial(self._loops.reduce_scatter, operation, parts, output))

    def all_gather(self, operation: Operation, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        self._exchange(operation, [tensor], [(peer, 0, output) for peer, output in enumerate(outputs)])

    def all_to_all(self, operation: Operation, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        self._exchange(operation, inputs, [(peer, self.rank, output) for peer, output in enumerate(outputs)])

    def broadcast(self, operation: Operation, tensor: torch.Tensor, source: int) -> None:
        self.broadcast_all(operation, [tensor], source)

    def broadcast_all(self, operation: Operation, tensors: Sequence[torch.Tensor], source: int) -> None:
        """Several tensors in one operation."""
        for start in range(0, len(tensors), MOST_ENTRIES):
            some = tensors[start : start + MOST_ENTRIES]
            if self.rank == source:
                self._exchange(operation, some, [], source)
            else:
                self._exchange(operation, [], [(source, index, tensor) for index, tensor in enumerate(some)], source)

    def _exchange(
        self,
        operation: Operation,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[tuple[int, int, torch.Tensor]],
        source: int = 0,
    ) -> None:
        """`outputs`: a peer, the number of one of its tensors, and where to copy it."""
        self.bytes_sent += sum(output.nbytes for peer, _, output in outputs if peer != self.rank)
        if self._native is None:
            self._in_python(operation, partial(self._loops.exchange, inputs, outputs), source)
            return
        flat: list[int] = []
        for peer, index, output in outputs:
            flat += (peer, index, output.data_ptr(), output.nbytes)
        statement = self._statement(operation, source)
        ended = self._native.exchange(self._handle, statement, _entries(inputs), flat)
        self._check(ended, operation, source)

    def missing(self) -> list[int]:
        return [self._ranks[peer] for peer in self._team.behind()]

    def check(self) -> None:
        try:
            self._team.look()
        except PeerLost as lost:
            raise in_group_ranks(lost, self._ranks) from None

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        self._team.give_up(reason, blamed=self._ranks.index(blamed) if blamed in self._ranks else None)

    def close(self) -> None:
        self._team.close()

    def _statement(self, operation: Operation, source: int = 0) -> bytes:
        return statement_of(operation, self._generation, source)

    def _in_python(self, operation: Operation, loop: Loop, source: int = 0) -> None:
        try:
            loop(self._statement(operation, source))
        except PeerLost as lost:
            raise in_group_ranks(lost, self._ranks) from None
        except Differs as found:
            raise self._disagreement(operation, source, found.peer, found.entry) from None
        except Garbled as found:
            raise self._garbled(operation, found.peer, str(found)) from None
        except Unreadable as found:
            raise self._unreadable(operation, found.peer, found.error) from None

    def _check(self, ended: int, operation: Operation, source: int = 0) -> None:
        """Raise the error that a C loop ended with."""
        if ended == DONE:
            return
        assert self._native is not None
        culprit, error = self._native.trouble(self._handle)
        try:
            if ended == DISAGREE:
                raise self._disagreement(operation, source, culprit, error - 1)
            if ended == GARBLED:
                raise self._garbled(operation, culprit, "a notice with numbers that cannot be")
            if ended == STOPPED:
                raise self._team.loss_of_stopped(culprit)
            if ended == LATE:
                raise self._team.loss_of_late(culprit)
            self._team.look(awaited=culprit)
        except PeerLost as lost:
            raise in_group_ranks(lost, self._ranks) from None
        raise self._unreadable(operation, culprit, error)

    def _unreadable(self, operation: Operation, peer: int, error: int) -> ShoalError:
        return ShoalError(
            f"{operation.label!r}: the memory of {self._place(peer)} cannot be read: {os.strerror(error)}"
        )

    def _place(self, peer: int) -> str:
        return f"rank {self._ranks[peer]} (process {self._team.processes[peer]})"

    def _garbled(self, operation: Operation, peer: int, why: str) -> WireError:
        return WireError(f"{operation.words}: {self._place(peer)} wrote what no rank may: {why}")

    def _disagreement(self, operation: Operation, source: int, peer: int, entry: int) -> ShoalError:
        """`entry`: number of the tensor whose size differs; negative if the operations differ."""
        ours = unpack(self._statement(operation, source), generation=self._generation)
        try:
            said = self._loops.said_by(peer)
            theirs = unpack(said.statement, generation=self._generation)
        except (Garbled, Refused, WireError) as found:
            return self._garbled(operation, peer, str(found))
        error = disagreement((self._ranks[self.rank], ours), (self._ranks[peer], theirs))
        if ours != theirs:
            return error
        sizes = f"tensors of {said.sizes[entry] if 0 <= entry < len(said.sizes) else said.sizes} bytes"
        return WorkersDisagree(f"{error}; rank {self._ranks[peer]} has {sizes}, where this rank has others")


def _has_loop(operation: Operation) -> bool:
    assert operation.reduction is not None
    return has_loop(operation.dtype, operation.reduction)


def _codes(operation: Operation) -> tuple[int, int]:
    assert operation.reduction is not None
    return _codes_of(operation.dtype, operation.reduction)


@lru_cache(maxsize=64)
def _codes_of(dtype: torch.dtype, reduction: Reduction) -> tuple[int, int]:
    return code_of(dtype), int(reduction_code(reduction))


def _entries(tensors: Sequence[torch.Tensor]) -> list[int]:
    flat: list[int] = []
    for tensor in tensors:
        flat += (tensor.data_ptr(), tensor.nbytes)
    return flat
