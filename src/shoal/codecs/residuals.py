"""Error feedback: what a lossy codec's bytes left out, by key, to be added to the next tensor that is encoded.

A residual belongs to elements of a group of tensors, not to a frame. When the number of workers changes, and with it
the cut between frames, each frame finds the residuals of its own elements, and zeros for the rest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping

import torch

from shoal.codecs.codec import Leg, TensorKey

_Piece = tuple[int, torch.Tensor]  # number of the first element, and the residual from there on


class Residuals:
    """Never changes the tensors that it holds, so that `state` needs no copy."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[Leg, str], list[_Piece]] = {}  # in order of their first elements, without overlaps

    def add_to(self, key: TensorKey, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor: the given one plus the residuals of its elements. `Leg.VALUES` has no residuals."""
        found = tensor.clone()
        pieces = self._pieces.get((key.leg, key.tensors), [])
        for start, known in pieces[_overlapping(pieces, key.start, key.start + len(tensor))]:
            begin, end = max(start, key.start), min(start + len(known), key.start + len(tensor))
            if known.dtype == tensor.dtype:
                found[begin - key.start : end - key.start] += known[begin - start : end - start]
        return found

    def put(self, key: TensorKey, left_out: torch.Tensor) -> None:
        """Replace the residual of the key's elements. The caller must not use the tensor any more."""
        if key.leg is Leg.VALUES or not len(left_out):
            return
        end, pieces = key.start + len(left_out), self._pieces.setdefault((key.leg, key.tensors), [])
        replaced = _overlapping(pieces, key.start, end)
        kept: list[_Piece] = [(key.start, left_out)]
        for start, known in pieces[replaced]:
            before, after = known[: max(0, key.start - start)], known[max(0, end - start) :]
            kept += [(at, part) for at, part in ((start, before), (max(start, end), after)) if len(part)]
        pieces[replaced] = sorted(kept, key=_start)

    def state(self) -> dict[str, torch.Tensor]:
        return {
            f"{leg.value} {start} {tensors}": piece
            for (leg, tensors), pieces in self._pieces.items()
            for start, piece in pieces
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._pieces = {}
        for text, piece in state.items():
            leg, _, rest = text.partition(" ")
            start, _, tensors = rest.partition(" ")
            if leg in (Leg.CONTRIBUTION.value, Leg.SUM.value) and start.isdecimal() and piece.dim() == 1:
                insort(self._pieces.setdefault((Leg(leg), tensors), []), (int(start), piece), key=_start)


def _start(piece: _Piece) -> int:
    return piece[0]


def _overlapping(pieces: list[_Piece], start: int, end: int) -> slice:
    """Which of the pieces have elements from `start` to `end`. A tensor may have thousands: one for each block."""
    first = bisect_right(pieces, start, key=_start)
    if first and pieces[first - 1][0] + len(pieces[first - 1][1]) > start:
        first -= 1
    return slice(first, max(first, bisect_left(pieces, end, key=_start)))
