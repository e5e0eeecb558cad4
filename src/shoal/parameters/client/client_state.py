"""Whole states between a worker and servers: values with their optimizers' state, for checkpoints.

Not here: how a block's state is packed (`block_state`), values alone (`client_pull`), gradients (`client_push`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shoal.errors import UsageError, WireError
from shoal.parameters import texts
from shoal.parameters.blocks.block_state import TensorJoin, cut, pack, unpack
from shoal.parameters.blocks.byte_views import bytes_of, tensor_over
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.client.client_ask import Asked, Asking, PullTerms
from shoal.parameters.client.client_core import ClientCore
from shoal.parameters.client.client_layout import ClientLayout
from shoal.parameters.client.client_push import Parcel
from shoal.parameters.client.client_servers import ServerLine
from shoal.wire.parameter_messages import Part

State = Mapping[str, torch.Tensor | float]  # of one tensor, by name, as in `optimizer.state[parameter]`


def parcels_of(
    layout: ClientLayout, tensors: Mapping[str, torch.Tensor], states: Mapping[str, State] | None
) -> dict[tuple[int, int], Parcel]:
    """A whole table as parcels for the servers, by server and unit."""
    table = layout.table
    for spec in table.tensors:
        given = tensors.get(spec.name)
        if given is None or tuple(given.shape) != spec.shape:
            shape = None if given is None else tuple(given.shape)
            raise UsageError(texts.values_differ(spec.name, shape, spec.shape))
    here = {spec.name: tensors[spec.name].detach().cpu() for spec in table.tensors}
    blocks = blocks_of(table)
    parcels = {}
    for server, part in layout.parts.items():
        for index, unit in enumerate(part.units):
            numbers = part.blocks[unit.first : unit.last]
            names = [table.tensors[blocks[number].tensor].name for number in numbers]
            cuts = [
                cut(table, number, here[name], (states or {}).get(name, {}))
                for number, name in zip(numbers, names, strict=True)
            ]
            described, data = pack(table, numbers, cuts)
            parcels[server, index] = Parcel(len(data), data=data, state=described)
    return parcels


class IncomingState(Asking):
    """All values and states, as servers have them."""

    def __init__(self, core: ClientCore, terms: PullTerms) -> None:
        super().__init__(core, terms)
        self._wanted: set[tuple[int, int]] = set()  # server and piece
        self._parts: list[tuple[tuple[int, ...], bytes, torch.Tensor]] = []  # blocks, description, bytes

    @property
    def result(self) -> list[tuple[tuple[int, ...], bytes, torch.Tensor]] | None:
        """None until everything is here."""
        self._core.check(self._epoch)
        is_current = self._layout is not None and self._layout is self._core.layout
        return self._parts if is_current and not self._wanted else None

    def started_over(self, layout: ClientLayout) -> None:
        self._parts.clear()
        self._wanted = {(server, piece) for server, pieces in layout.pieces.items() for piece in range(len(pieces))}

    def room_for(self, asked: Asked, note: Part, size: int) -> memoryview | None:
        del asked
        if note.codec:
            raise WireError(f"it sends whole states as the codec {note.codec} encodes values")
        return bytes_of(torch.empty(size, dtype=torch.uint8))

    def taken(self, line: ServerLine, asked: Asked, note: Part, payload: memoryview | None) -> bool:
        assert self._layout is not None and payload is not None
        blocks = self._layout.parts[line.server.number].blocks[asked.first : asked.last]
        self._parts.append((blocks, note.state, tensor_over(payload)))
        self._wanted.difference_update((asked.server, piece) for piece in asked.pieces)
        return True


def joined(
    layout: ClientLayout, parts: list[tuple[tuple[int, ...], bytes, torch.Tensor]]
) -> dict[str, dict[str, torch.Tensor]]:
    """By tensor name: "" is its value, the rest is its optimizer's state."""
    join = TensorJoin(layout.table)
    for blocks, described, data in parts:
        for number, state in zip(blocks, unpack(layout.table, blocks, described, data), strict=True):
            join.add(number, state)
    return join.tensors()
