"""An exchanger for GPU tensors on top of one for host memory: through pinned memory, with copies that overlap.

An operation is cut into turns (`gpu_cuts`). While the exchanger below reduces one turn, the next turn is copied down to
the host and the previous one back up to the GPU. If there are several turns, all ranks compare the whole operation
before the first one, so that ranks whose sizes differ find out at once. Not here: the copies themselves (`gpu_copies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch

from shoal.collectives.exchanger import Exchanger, Operation
from shoal.collectives.gpu.gpu_copies import Copies, Mark
from shoal.collectives.gpu.gpu_cuts import TensorPiece, cut_parts, cut_run, turn_elements

BUFFERS = 3  # of host memory: one turn is copied down, one is reduced, one is copied up

Flats = Sequence[torch.Tensor]


@dataclass(frozen=True)
class _Turn:
    reads: Flats  # on the GPU: the operands
    fills: Flats  # on the GPU: where the results go
    is_in_place: bool  # results take the place of the operands
    carry: Callable[[torch.Tensor, torch.Tensor], None]  # reduces operands into results, both flat in host memory


class Ferry(Exchanger):
    """Tensors are flat, contiguous and on the GPU of the copies. Runs one operation after the other."""

    def __init__(self, exchanger: Exchanger, copies: Copies) -> None:
        """The ferry owns neither of them."""
        self.rank, self.size = exchanger.rank, exchanger.size
        self._exchanger = exchanger
        self._copies = copies

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]  # counted below
        return self._exchanger.bytes_sent

    @property
    def idle_seconds(self) -> float:  # type: ignore[override]  # counted below
        return self._exchanger.idle_seconds

    def all_reduce(self, operation: Operation, tensors: Flats) -> None:
        def turn(number: int, pieces: Sequence[TensorPiece]) -> _Turn:
            part, flats = _part(operation, number, pieces), _pieces(tensors, pieces)
            if part.key:  # turns depend on sizes alone, so a turn has the same key in every step
                part = msgspec.structs.replace(part, key=f"{part.key}, {pieces[0].tensor} from {pieces[0].start}")
            return _Turn(flats, flats, True, lambda sums, _: self._exchanger.all_reduce(part, [sums]))

        cuts = cut_run([len(each) for each in tensors], _most(operation))
        self._run(operation, [turn(number, pieces) for number, pieces in enumerate(cuts, 1)])

    def reduce_scatter(self, operation: Operation, output: torch.Tensor, parts: Flats) -> None:
        def turn(number: int, pieces: Sequence[TensorPiece]) -> _Turn:
            part, flats, own = _part(operation, number, pieces), _pieces(parts, pieces), pieces[self.rank]

            def carry(given: torch.Tensor, filled: torch.Tensor) -> None:
                self._exchanger.reduce_scatter(part, filled, _split(given, flats))

            return _Turn(flats, [output[own.start : own.stop]], False, carry)

        cuts = cut_parts([len(each) for each in parts], _most(operation))
        self._run(operation, [turn(number, pieces) for number, pieces in enumerate(cuts, 1)])

    def all_gather(self, operation: Operation, outputs: Flats, tensor: torch.Tensor) -> None:
        def turn(number: int, pieces: Sequence[TensorPiece]) -> _Turn:
            part, flats, own = _part(operation, number, pieces), _pieces(outputs, pieces), pieces[self.rank]

            def carry(given: torch.Tensor, filled: torch.Tensor) -> None:
                self._exchanger.all_gather(part, _split(filled, flats), given)

            return _Turn([tensor[own.start : own.stop]], flats, False, carry)

        cuts = cut_parts([len(each) for each in outputs], _most(operation))
        self._run(operation, [turn(number, pieces) for number, pieces in enumerate(cuts, 1)])

    def all_to_all(self, operation: Operation, outputs: Flats, inputs: Flats) -> None:
        """Runs in one turn, since no rank knows the sizes of all tensors."""

        def carry(given: torch.Tensor, filled: torch.Tensor) -> None:
            self._exchanger.all_to_all(operation, _split(filled, outputs), _split(given, inputs))

        self._run(operation, [_Turn(inputs, outputs, False, carry)])

    def broadcast(self, operation: Operation, tensor: torch.Tensor, source: int) -> None:
        is_source = self.rank == source

        def turn(number: int, pieces: Sequence[TensorPiece]) -> _Turn:
            part, flats = _part(operation, number, pieces), _pieces([tensor], pieces)

            def carry(given: torch.Tensor, filled: torch.Tensor) -> None:
                self._exchanger.broadcast(part, given if is_source else filled, source)

            return _Turn(flats if is_source else [], [] if is_source else flats, False, carry)

        cuts = cut_run([len(tensor)], _most(operation))
        self._run(operation, [turn(number, pieces) for number, pieces in enumerate(cuts, 1)])

    def missing(self) -> list[int]:
        return self._exchanger.missing()

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        self._exchanger.abort(reason, blamed=blamed)

    def close(self) -> None:
        """Nothing to do: the owner of the exchanger below closes it."""

    def _run(self, operation: Operation, turns: Sequence[_Turn]) -> None:
        if len(turns) > 1:
            nothing = torch.empty(0, dtype=operation.dtype)
            self._exchanger.all_gather(operation, [nothing] * self.size, nothing)
        rounds = [_Round(turn, operation.dtype, self._copies) for turn in turns]
        memory = [self._copies.memory(max(each.size for each in rounds)) for _ in rounds[:BUFFERS]]
        ups: list[Mark] = []
        for number in range(len(rounds) + 1):
            if number < len(rounds):
                before = ups[number - BUFFERS] if number >= BUFFERS else None
                rounds[number].go_down(memory[number % BUFFERS], before)
            if number:
                ups.append(rounds[number - 1].come_up())
        self._copies.wait(ups[-1])


class _Round:
    """One turn, from its copy down to its copy up."""

    def __init__(self, turn: _Turn, dtype: torch.dtype, copies: Copies) -> None:
        self._turn = turn
        self._dtype = dtype
        self._copies = copies
        self._reads = sum(len(each) for each in turn.reads)  # elements
        self._fills = 0 if turn.is_in_place else sum(len(each) for each in turn.fills)
        self.size = (self._reads + self._fills) * dtype.itemsize

    def go_down(self, memory: torch.Tensor, after: Mark | None) -> None:
        """`after`: the mark at which the memory is free."""
        host = memory[: self.size].view(self._dtype)
        self._below = host[: self._reads]
        self._above = self._below if self._turn.is_in_place else host[self._reads :]
        self._mark = self._copies.down(self._below, self._turn.reads, after)

    def come_up(self) -> Mark:
        """Reduce the operands in this thread, and start copying the results up."""
        self._copies.wait(self._mark)
        self._turn.carry(self._below, self._above)
        return self._copies.up(self._turn.fills, self._above)


def _most(operation: Operation) -> int:
    return turn_elements(operation.elements, operation.dtype.itemsize)


def _pieces(tensors: Flats, pieces: Sequence[TensorPiece]) -> list[torch.Tensor]:
    return [tensors[piece.tensor][piece.start : piece.stop] for piece in pieces]


def _part(operation: Operation, number: int, pieces: Sequence[TensorPiece]) -> Operation:
    """Turns count from 1: 0 is the comparison before the first one, whose number of elements is another."""
    return msgspec.structs.replace(operation, turn=number, elements=sum(piece.stop - piece.start for piece in pieces))


def _split(flat: torch.Tensor, like: Flats) -> list[torch.Tensor]:
    return list(flat.split([len(each) for each in like]))
