"""A worker's part of a state, copied aside while training goes on.

A thread copies what only `optimizer.step()` changes (parameters and optimizer state: nearly all bytes) during the next
forward and backward. An update helps with what is left and waits until the copy is whole, so that training is blocked
for one copy of this worker's part at most, and usually not at all. Everything else is copied at once, and so is a state
too small for a thread. The copy has the layout of the file.

Code that changes a parameter in place before the next update, outside `optimizer.step()`, is found by torch's version
counters: the capture is then `torn` and must not be used.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy
import torch

from shoal.checkpoint.parts.division import Extent, Rows, divide
from shoal.checkpoint.parts.part_file import StoredTensor
from shoal.checkpoint.stores.direct_write import BLOCK

SMALL = 1024 * 1024  # bytes of a part that are copied at once
UNIT = 8 * 1024 * 1024  # bytes that are copied in one go


@dataclass(frozen=True)
class NamedState:
    """The state to capture, as a flat list of named tensors."""

    names: Sequence[str]
    tensors: Sequence[torch.Tensor]
    steady: Collection[str]  # names of tensors that nothing but an optimizer's step changes
    own: Mapping[str, torch.Tensor] = field(default_factory=dict)  # tensors of this worker alone; it writes all of each


@dataclass(frozen=True)
class CapturedPiece:
    tensor: int  # index into the state's tensors
    stored: StoredTensor
    offset: tuple[int, ...]  # in the whole tensor
    shape: tuple[int, ...]
    begin: int  # in the capture memory
    end: int


Description = tuple[str, str, tuple[int, ...]]  # of a tensor: name, dtype, shape


@dataclass(frozen=True)
class Layout:
    """What one worker's part consists of, for all states with the same tensors."""

    tensors: list[Description]  # of the whole state, then of this worker alone
    shared: int  # how many of these are of the whole state
    rank: int
    world_size: int
    pieces: list[CapturedPiece]


class CaptureMemory:
    """Memory for one captured part, and its layout, kept from checkpoint to checkpoint.

    Fresh memory costs several times as much as a copy; laying thousands of small tensors out, more than copying them.
    """

    def __init__(self) -> None:
        self._memory = numpy.empty(0, dtype=numpy.uint8)
        self._layout = Layout([], 0, 0, 0, [])

    def layout(self, state: NamedState, rank: int, world_size: int) -> Layout:
        tensors = [
            (name, str(tensor.dtype)[6:], tuple(tensor.shape))
            for name, tensor in (*zip(state.names, state.tensors, strict=True), *state.own.items())
        ]
        known, shared = self._layout, len(state.tensors)
        if (known.shared, known.rank, known.world_size) != (shared, rank, world_size) or known.tensors != tensors:
            self._layout = Layout(tensors, shared, rank, world_size, _lay_out(state, rank, world_size))
        return self._layout

    def prepare(self, size: int) -> None:
        """Get memory and touch every page of it, so that the first copy is as fast as the others. For a thread."""
        self.of_size(size).fill(0)

    def of_size(self, size: int) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.uint8]]:
        if self._memory.nbytes < size:
            self._memory = numpy.empty(0, dtype=numpy.uint8)  # free the old memory before allocating the new
            memory = numpy.empty(size + BLOCK, dtype=numpy.uint8)
            self._memory = memory[-memory.ctypes.data % BLOCK :][:size]  # on a block boundary; see direct_write
        return self._memory[:size]


class Capture:
    """One part of one state. `wait` is for a thread; `settle` is for the thread that is about to change the state.

    Only `settle` can tell whether the copy is torn: torch counts a change in place when it is over, not when it begins.
    Nobody may rely on the copy before it `is_settled`.
    """

    def __init__(self, state: NamedState, memory: CaptureMemory, *, rank: int, world_size: int) -> None:
        self._tensors = [*state.tensors, *state.own.values()]
        names = [*state.names, *state.own]
        self.layout = memory.layout(state, rank, world_size)
        self.pieces = self.layout.pieces
        self.memory = memory.of_size(self.pieces[-1].end if self.pieces else 0)
        self.torn: str | None = None  # name of a tensor that was changed while it was copied
        self.failure: Exception | None = None  # why something could not be copied
        self._names = names
        self._done = threading.Event()
        self.is_settled = threading.Event()
        self._counting = threading.Lock()
        is_small = self.memory.nbytes <= SMALL
        later = [piece for piece in self.pieces if not is_small and names[piece.tensor] in state.steady]
        self._versions = {piece.tensor: self._tensors[piece.tensor]._version for piece in later}
        for piece in self.pieces:
            if piece.tensor not in self._versions:
                self._copy(piece, 0, piece.stored.size)
        self._units = deque(_units(later))
        self._left = len(self._units)  # units that are not copied yet
        if not self._left:
            self._done.set()
            self.settle()

    def copy_rest(self) -> None:
        """Copy until nothing is left. Several threads may do so at once."""
        while self._units:
            try:
                unit = self._units.popleft()
            except IndexError:  # another thread took the last unit
                break
            try:
                for piece, begin, end in unit:
                    self._copy(piece, begin, end)
            except Exception as error:  # count the unit all the same: others wait for the last one
                self.failure = error
            with self._counting:
                self._left -= 1
                if not self._left:
                    self._done.set()

    def wait(self) -> None:
        self.copy_rest()
        self._done.wait()

    def settle(self) -> None:
        """For the thread that changes the state: wait for the copy, and find out whether it is whole or torn."""
        self.wait()
        for tensor, version in self._versions.items():
            if self._tensors and self._tensors[tensor]._version != version:
                self.torn = self._names[tensor]
        self._tensors = []
        self.is_settled.set()

    def data(self, piece: CapturedPiece) -> memoryview:
        return self.memory.data[piece.begin : piece.end]

    def _source(self, piece: CapturedPiece) -> torch.Tensor:
        source = self._tensors[piece.tensor]
        if piece.shape != tuple(source.shape):
            source = source[piece.offset[0] : piece.offset[0] + piece.shape[0]]
        return source

    def _copy(self, piece: CapturedPiece, begin: int, end: int) -> None:
        source = self._source(piece)
        if source.is_contiguous() and source.device.type == "cpu" and not (source.is_conj() or source.is_neg()):
            # numpy copies in this thread, without Python's lock; torch would start threads of its own.
            target = self.memory[piece.begin + begin : piece.begin + end]
            numpy.copyto(target, source.reshape(-1).view(torch.uint8).numpy()[begin:end])
        elif begin == 0:  # strides, a device or conjugation: copy the whole piece with its first unit
            plain = source.resolve_conj().resolve_neg().contiguous()
            torch.from_numpy(self.memory[piece.begin : piece.end]).copy_(plain.reshape(-1).view(torch.uint8))


Stretch = tuple[CapturedPiece, int, int]  # a piece, and which of its bytes


def _units(pieces: Sequence[CapturedPiece]) -> Iterator[list[Stretch]]:
    """Split the work into units: a part of a large piece, or many small pieces."""
    unit: list[Stretch] = []
    size = 0
    for piece in pieces:
        for at in range(0, piece.stored.size, UNIT):
            end = min(at + UNIT, piece.stored.size)
            unit.append((piece, at, end))
            size += end - at
            if size >= UNIT:
                yield unit
                unit, size = [], 0
    if unit:
        yield unit


def _lay_out(state: NamedState, rank: int, world_size: int) -> list[CapturedPiece]:
    """Largest elements first, so that every piece starts at a multiple of its element's size, without gaps."""
    extents = [Extent(tuple(tensor.shape), tensor.element_size()) for tensor in state.tensors]
    tensors = [*state.tensors, *state.own.values()]
    own = (Rows(number, 0, tensors[number].shape[0]) for number in range(len(state.tensors), len(tensors)))
    rows = (*divide(extents, world_size)[rank], *own)
    keys = _keys([*state.names, *state.own])
    ordered = sorted(rows, key=lambda part: (-tensors[part.tensor].element_size(), part.tensor))
    pieces: list[CapturedPiece] = []
    position = 0
    for part in ordered:
        tensor = tensors[part.tensor]
        whole = tuple(tensor.shape)
        is_cut = bool(whole) and part.count < whole[0]
        shape = (part.count, *whole[1:]) if is_cut else whole
        size = int(numpy.prod(shape, dtype=numpy.int64)) * tensor.element_size()
        key = f"{keys[part.tensor]}@{part.start}" if is_cut else keys[part.tensor]
        pieces.append(
            CapturedPiece(
                tensor=part.tensor,
                stored=StoredTensor(key=key, dtype=str(tensor.dtype)[6:], shape=shape, size=size),
                offset=(part.start, *[0] * (len(whole) - 1)) if whole else (),
                shape=shape,
                begin=position,
                end=position + size,
            )
        )
        position += size
    return pieces


def _keys(names: Sequence[str]) -> list[str]:
    """Names in the file: those of the tensors, with a number where two tensors have the same name."""
    seen: dict[str, int] = {}
    keys = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        keys.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return keys
