"""A worker's part of a state, copied aside while training goes on.

What only `optimizer.step()` changes (parameters and optimizer state: nearly all bytes) is copied by a thread during the
next forward and backward; an update waits until that is done and helps with what is left, so that training is blocked
for one copy of this worker's part at most, and usually for nothing. Everything else is copied at once, and so is a
state so small that a thread is not worth it. The copy has the layout of the file.

Code that changes a parameter in place before the next update, outside `optimizer.step()`, is found by torch's version
counters: the capture is then `torn` and must not be used.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy
import torch

from shoal.checkpoint.direct_write import BLOCK
from shoal.checkpoint.division import Extent, Rows, divide
from shoal.checkpoint.part_file import Stored

SMALL = 1024 * 1024  # bytes of a part that are copied at once
UNIT = 8 * 1024 * 1024  # bytes that are copied in one go


@dataclass(frozen=True)
class NamedState:
    """A state, flat: what is captured."""

    names: Sequence[str]
    tensors: Sequence[torch.Tensor]
    steady: Collection[str]  # names of tensors that nothing but an optimizer's step changes


@dataclass(frozen=True)
class CapturedPiece:
    tensor: int  # index into the state's tensors
    stored: Stored
    offset: tuple[int, ...]  # in the whole tensor
    shape: tuple[int, ...]
    begin: int  # in the staging memory
    end: int


class Staging:
    """Memory for one captured part, kept from checkpoint to checkpoint: fresh memory costs several times a copy."""

    def __init__(self) -> None:
        self._memory = numpy.empty(0, dtype=numpy.uint8)

    def prepare(self, size: int) -> None:
        """Get memory and touch every page of it, so that the first copy is as fast as the others. For a thread."""
        self.of_size(size).fill(0)

    def of_size(self, size: int) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.uint8]]:
        if self._memory.nbytes < size:
            self._memory = numpy.empty(0, dtype=numpy.uint8)  # let go of the old before the new one is there
            memory = numpy.empty(size + BLOCK, dtype=numpy.uint8)
            self._memory = memory[-memory.ctypes.data % BLOCK :][:size]  # on a block boundary; see direct_write
        return self._memory[:size]


class Capture:
    """One part of one state. `copy_rest` is for a thread; `wait` is for whoever is about to change the state."""

    def __init__(self, state: NamedState, staging: Staging, *, rank: int, world_size: int) -> None:
        self._tensors = state.tensors
        extents = [Extent(tuple(tensor.shape), tensor.element_size()) for tensor in state.tensors]
        self.pieces = _lay_out(state, divide(extents, world_size)[rank])
        self.memory = staging.of_size(self.pieces[-1].end if self.pieces else 0)
        self.torn: str | None = None  # name of a tensor that was changed while it was copied
        self._names = state.names
        self._done = threading.Event()
        self._counting = threading.Lock()
        is_small = self.memory.nbytes <= SMALL
        later = [piece for piece in self.pieces if not is_small and state.names[piece.tensor] in state.steady]
        self._versions = {piece.tensor: state.tensors[piece.tensor]._version for piece in later}
        for piece in self.pieces:
            if piece.tensor not in self._versions:
                self._copy(piece, 0, piece.stored.size)
        self._units = deque((piece, *bounds) for piece in later for bounds in _units(piece, self._is_plain(piece)))
        self._left = len(self._units)  # units that are not copied yet
        if not self._left:
            self._finish()

    def copy_rest(self) -> None:
        """Copy until nothing is left, beside whoever else does."""
        while self._units:
            try:
                unit = self._units.popleft()
            except IndexError:  # somebody else was faster
                break
            self._copy(*unit)
            with self._counting:
                self._left -= 1
                if not self._left:
                    self._finish()

    def wait(self) -> None:
        self.copy_rest()
        self._done.wait()

    def _finish(self) -> None:
        for tensor, version in self._versions.items():
            if self._tensors[tensor]._version != version:
                self.torn = self._names[tensor]
        self._tensors = ()
        self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def data(self, piece: CapturedPiece) -> memoryview:
        return self.memory.data[piece.begin : piece.end]

    def _source(self, piece: CapturedPiece) -> torch.Tensor:
        source = self._tensors[piece.tensor]
        if piece.shape != tuple(source.shape):
            source = source[piece.offset[0] : piece.offset[0] + piece.shape[0]]
        return source

    def _is_plain(self, piece: CapturedPiece) -> bool:
        """Whether its bytes lie in memory as they do in the file."""
        source = self._source(piece)
        return source.is_contiguous() and source.device.type == "cpu" and not (source.is_conj() or source.is_neg())

    def _copy(self, piece: CapturedPiece, begin: int, end: int) -> None:
        source = self._source(piece)
        target = self.memory[piece.begin + begin : piece.begin + end]
        if self._is_plain(piece):
            # numpy copies in this thread alone and without Python's lock; torch would start threads of its own.
            numpy.copyto(target, source.reshape(-1).view(torch.uint8).numpy()[begin:end])
        else:
            plain = source.resolve_conj().resolve_neg().contiguous()
            torch.from_numpy(target).copy_(plain.reshape(-1).view(torch.uint8))


def _units(piece: CapturedPiece, is_plain: bool) -> list[tuple[int, int]]:
    """Stretches of its bytes that are copied in one go; all of them where the bytes must be put in order."""
    size = piece.stored.size
    return [(at, min(at + UNIT, size)) for at in range(0, size, UNIT)] if is_plain else [(0, size)]


def _lay_out(state: NamedState, rows: Sequence[Rows]) -> list[CapturedPiece]:
    """Largest elements first, so that every piece starts at a multiple of its element's size, without gaps."""
    keys = _keys(state.names)
    ordered = sorted(rows, key=lambda part: (-state.tensors[part.tensor].element_size(), part.tensor))
    pieces: list[CapturedPiece] = []
    position = 0
    for part in ordered:
        tensor = state.tensors[part.tensor]
        whole = tuple(tensor.shape)
        is_cut = bool(whole) and part.count < whole[0]
        shape = (part.count, *whole[1:]) if is_cut else whole
        size = int(numpy.prod(shape, dtype=numpy.int64)) * tensor.element_size()
        key = f"{keys[part.tensor]}@{part.start}" if is_cut else keys[part.tensor]
        pieces.append(
            CapturedPiece(
                tensor=part.tensor,
                stored=Stored(key=key, dtype=str(tensor.dtype)[6:], shape=shape, size=size),
                offset=(part.start, *[0] * (len(whole) - 1)) if whole else (),
                shape=shape,
                begin=position,
                end=position + size,
            )
        )
        position += size
    return pieces


def _keys(names: Sequence[str]) -> list[str]:
    """Names in the file: the tensors' own, with a number where two of a state's are alike."""
    seen: dict[str, int] = {}
    keys = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        keys.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return keys
