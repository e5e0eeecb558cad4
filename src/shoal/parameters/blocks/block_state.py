"""Blocks with their optimizer's state as bytes: how they move between servers, to a checkpoint, and back.

A short *description* goes beside the bytes: for each run of blocks, the names of the state's tensors, and the numbers
that are the same for the whole parameter (`step`). The bytes of each block are its values, then these tensors, all in
the block's dtype, each padded to 16 bytes. Sizes follow from the table, so no description can ask for more memory than
the table does. Not here: where a server keeps the state (`unit_rule`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import torch
from msgspec import Meta

from shoal.bounds import Name, Ordinal
from shoal.errors import ServerRefused, ShoalError
from shoal.parameters import texts
from shoal.parameters.blocks.byte_views import bytes_of, torch_type
from shoal.parameters.blocks.table_blocks import Block, blocks_of
from shoal.parameters.server.updates.update_rules import RULES
from shoal.wire.parameter_messages import MOST_BLOCKS
from shoal.wire.tables import TableSpec

ALIGNMENT = 16  # bytes; no element is larger


@dataclass(frozen=True)
class BlockState:
    """One block, as flat tensors of its dtype. Without tensors and scalars, no update has been applied to it."""

    values: torch.Tensor
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


class _Form(msgspec.Struct, frozen=True, array_like=True):
    """What the next `count` blocks have."""

    count: Ordinal
    tensors: Annotated[tuple[Name, ...], Meta(max_length=16)]
    scalars: Annotated[tuple[tuple[Name, float], ...], Meta(max_length=16)]


_decoder = msgspec.msgpack.Decoder(Annotated[tuple[_Form, ...], Meta(max_length=MOST_BLOCKS)])


def pack(table: TableSpec, numbers: Sequence[int], states: Sequence[BlockState]) -> tuple[bytes, memoryview]:
    """Description and bytes of these blocks, copied."""
    forms = [
        _Form(len(list(run)), *form)
        for form, run in itertools.groupby((tuple(state.tensors), tuple(state.scalars.items())) for state in states)
    ]
    described = msgspec.msgpack.encode(forms)
    payload = torch.empty(payload_bytes(table, numbers, described), dtype=torch.uint8)
    at = 0
    for state in states:
        for tensor in (state.values, *state.tensors.values()):
            size = tensor.numel() * tensor.element_size()
            payload[at : at + size].copy_(tensor.view(torch.uint8))
            payload[at + size : at + _padded(size)].zero_()
            at += _padded(size)
    return described, bytes_of(payload)


def payload_bytes(table: TableSpec, numbers: Sequence[int], described: bytes) -> int:
    """The size of these blocks in bytes; `ServerRefused` if the description is not of these blocks."""
    forms = _forms(table, numbers, described)
    return sum(_padded(block.size) * (1 + len(form.tensors)) for block, form in forms)


def unpack(table: TableSpec, numbers: Sequence[int], described: bytes, payload: torch.Tensor) -> list[BlockState]:
    """The blocks' states as views of `payload`: bytes that start at a multiple of 16 in their memory."""
    if payload_bytes(table, numbers, described) != len(payload):
        wanted = payload_bytes(table, numbers, described)
        raise _bad(f"{len(payload)} bytes of state came for {len(numbers)} blocks that take {wanted}")
    found, at = [], 0
    for block, form in _forms(table, numbers, described):
        dtype, views = torch_type(block.dtype), []
        for _ in range(1 + len(form.tensors)):
            views.append(payload[at : at + block.size].view(dtype))
            at += _padded(block.size)
        found.append(BlockState(views[0], dict(zip(form.tensors, views[1:], strict=True)), dict(form.scalars)))
    return found


def cut(table: TableSpec, number: int, values: torch.Tensor, state: Mapping[str, torch.Tensor | float]) -> BlockState:
    """One block of a whole tensor and of its optimizer's state, as in `optimizer.state[parameter]`."""
    block = blocks_of(table)[number]
    rule = RULES[table.rules[block.optimizer].name]
    dtype = torch_type(block.dtype)

    def part(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(dtype).reshape(-1)[block.start : block.stop]

    tensors = {name: torch.as_tensor(state[name]) for name in rule.tensors if state.get(name) is not None}
    return BlockState(
        part(values),
        {name: part(tensor) for name, tensor in tensors.items()},
        {name: float(state[name]) for name in rule.scalars if name in state},
    )


class TensorJoin:
    """Puts whole tensors together from blocks that arrive in any order."""

    def __init__(self, table: TableSpec) -> None:
        self._table = table
        self._missing = set(range(len(blocks_of(table))))
        self._found: dict[str, dict[str, torch.Tensor]] = {
            spec.name: {"": torch.empty(spec.shape, dtype=torch_type(spec.dtype))} for spec in table.tensors
        }

    def add(self, number: int, state: BlockState) -> None:
        """Copy a block in. If a number differs between blocks of a tensor, that of the first block counts."""
        block = blocks_of(self._table)[number]
        spec = self._table.tensors[block.tensor]
        whole = self._found[spec.name]
        for name, tensor in (("", state.values), *state.tensors.items()):
            if name not in whole:
                whole[name] = torch.zeros(spec.shape, dtype=torch_type(spec.dtype))
            whole[name].view(-1)[block.start : block.stop].copy_(tensor)
        for name, value in state.scalars.items():
            if name not in whole or block.start == 0:
                whole[name] = torch.tensor(value, dtype=torch.float32)
        self._missing.discard(number)

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """By tensor: "" is its values, the others are the optimizer's state by name."""
        if self._missing:
            raise ShoalError(f"{len(self._missing)} blocks of the table are missing, such as {min(self._missing)}")
        return self._found


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _forms(table: TableSpec, numbers: Sequence[int], described: bytes) -> Iterator[tuple[Block, _Form]]:
    try:
        forms = _decoder.decode(described)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _bad(f"not a description of blocks' state: {error}") from None
    if any(form.count < 1 for form in forms) or sum(form.count for form in forms) != len(numbers):
        raise _bad(f"a description of {sum(form.count for form in forms)} blocks came with {len(numbers)}")
    every = blocks_of(table)
    place = 0
    for form in forms:
        checked: set[tuple[int, int]] = set()
        for number in numbers[place : place + form.count]:
            block = every[number]
            if (block.optimizer, block.group) not in checked:
                _check_form(table, block, form)
                checked.add((block.optimizer, block.group))
            yield block, form
        place += form.count


def _check_form(table: TableSpec, block: Block, form: _Form) -> None:
    """All of a rule's state or none, so that an update can go on from it."""
    spec = table.rules[block.optimizer]
    rule = RULES[spec.name]
    tensors, scalars = set(form.tensors), {name for name, _ in form.scalars}
    if not tensors and not scalars:
        return
    kept = set(rule.kept(spec.groups[block.group]))
    is_whole = tensors <= set(rule.tensors) if rule.is_flexible else tensors == kept
    if not is_whole or scalars != set(rule.scalars) or len(tensors) != len(form.tensors):
        name, needed = table.tensors[block.tensor].name, (*sorted(kept), *rule.scalars)
        raise _bad(texts.anothers_state(spec.name, name, sorted(tensors | scalars), needed))


def _bad(reason: str) -> ServerRefused:
    return ServerRefused(reason, kind="bad-request")
