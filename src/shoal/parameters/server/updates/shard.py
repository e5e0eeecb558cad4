"""A server's part of one job's table: values, optimizers' state, and the updates that are applied to them.

Works unit by unit, so that a server can serve its connections in between. A block may be *absent* (it will come from
another server, or from a checkpoint): updates skip it. From the time a block is *asked for* until it arrives, updates
are kept for it; those that its sender had not applied yet are applied on arrival. No thread, no socket.

Not here: which blocks a server holds (`placement`), what is applied when (`ledger`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.parameters.blocks.block_state import BlockState, pack, unpack
from shoal.parameters.blocks.byte_views import bytes_of, tensor_over, torch_type
from shoal.parameters.blocks.part_layout import PartLayout
from shoal.parameters.blocks.part_memory import PartMemory
from shoal.parameters.blocks.table_blocks import Block, blocks_of
from shoal.parameters.server.updates.shard_update import ShardUpdate
from shoal.parameters.server.updates.staging import StagedPush
from shoal.parameters.server.updates.unit_rule import UnitRule
from shoal.wire.tables import TableSpec


@dataclass(frozen=True)
class _Kept:
    """An update, kept for a block that is on its way to this server."""

    number: int  # of the entry
    gradient: torch.Tensor
    values: dict[str, Any]


class Shard:
    """Blocks of one layout. All are absent at first."""

    def __init__(self, table: TableSpec, layout: PartLayout, *, is_shared: bool = False) -> None:
        """`is_shared`: workers on this machine may read values from memory."""
        self.table = table
        self.layout = layout
        self.memory = PartMemory(layout, is_shared=is_shared)
        self._blocks = blocks_of(table)
        self._places = {number: place for place, number in enumerate(layout.blocks)}  # in the key list
        self._rules: dict[int, UnitRule] = {}  # by unit, made when needed; a unit without one has only absent blocks
        self._asked: dict[int, list[_Kept]] = {}  # by block number: kept updates, in order
        self._scratch = torch.empty(max((unit.size for unit in layout.units), default=0), dtype=torch.uint8)

    @property
    def held_bytes(self) -> int:
        """Bytes of parameters, state and kept updates."""
        kept = (update.gradient for updates in self._asked.values() for update in updates)
        states = sum(rule.state_bytes for rule in self._rules.values())
        return self.layout.size + states + sum(tensor.numel() * tensor.element_size() for tensor in kept)

    def has(self, first: int, last: int) -> bool:
        """All blocks from `first` to `last` of the key list have values."""
        unit = self.layout.unit_of(first)
        if last <= self.layout.units[unit].last and unit in self._rules and self._rules[unit].is_ready:
            return True  # the fast way, as every pull asks
        return all(self._has(self.layout.blocks[place]) for place in range(first, last))

    def absent(self) -> tuple[int, ...]:
        """Numbers of the blocks without values."""
        ready = {number for number, rule in self._rules.items() if rule.is_ready}
        units = (unit for number, unit in enumerate(self.layout.units) if number not in ready)
        numbers = (self.layout.blocks[place] for unit in units for place in range(unit.first, unit.last))
        return tuple(number for number in numbers if not self._has(number))

    def apply_unit(self, update: ShardUpdate, number: int) -> None:
        """One optimizer step of one unit."""
        gradient = update.gradient(number, self._scratch)
        if gradient is None:
            return
        values = update.values(self.layout.units[number])
        rule = self._rule(number)
        if self._asked and not rule.is_ready:
            self._keep(update.number, number, gradient, values)
        self.memory.break_seal(number)
        rule.step(gradient, values)
        self.memory.seal(number)

    def assign_unit(self, push: StagedPush, number: int) -> None:
        """Replace values and state of one unit's blocks with those that are staged, where there are any."""
        first = self.layout.units[number].first
        states = push.states(self.layout.units[number])
        for place in states:
            self._asked.pop(self.layout.blocks[place], None)  # what still arrives of it is older
        self._install(number, {place - first: state for place, state in states.items()})

    def read(self, first: int, last: int) -> memoryview:
        """Values of blocks `first` to `last` of the key list, without a copy."""
        return bytes_of(self.memory.tensor[self.layout.offset(first) : self.layout.offset(last)])

    def extract(self, numbers: Sequence[int]) -> tuple[bytes, memoryview]:
        """Blocks by their numbers, with their state: a description and a copy of their bytes."""
        return pack(self.table, numbers, [self._state(number) for number in numbers])

    def ask(self, numbers: Iterable[int]) -> None:
        """These blocks are being fetched, in their present or a later state: keep updates for them from now on."""
        for number in numbers:
            if not self._has(number):
                self._asked.setdefault(number, [])

    def insert(self, numbers: Sequence[int], described: bytes, payload: memoryview, applied: int) -> None:
        """Install fetched blocks, which include entry `applied`. Ignores those that are not asked for (any more).

        `payload` starts at a multiple of 16 bytes in memory.
        """
        states = unpack(self.table, numbers, described, tensor_over(payload))
        wanted = [(number, state) for number, state in zip(numbers, states, strict=True) if number in self._asked]
        by_unit: dict[int, dict[int, BlockState]] = {}
        for number, state in self._caught_up(wanted, applied):
            del self._asked[number]
            unit = self.layout.unit_of(self._places[number])
            by_unit.setdefault(unit, {})[self._places[number] - self.layout.units[unit].first] = state
        for unit, found in by_unit.items():
            self._install(unit, found)

    def take_unit(self, older: Shard, number: int) -> None:
        """Copy the blocks of one unit from an older shard, as far as it has them."""
        unit = self.layout.units[number]
        blocks = self.layout.blocks[unit.first : unit.last]
        self._install(number, {index: older._state(block) for index, block in enumerate(blocks) if older._has(block)})

    def close(self) -> None:
        """Give memory back, unit by unit, so that other threads can run in between. Safe to call twice."""
        while self._rules:
            self._rules.popitem()
        self.memory.close()

    def _rule(self, number: int) -> UnitRule:
        """The rule of a unit."""
        if number not in self._rules:
            unit = self.layout.units[number]
            memory = self.memory.tensor[unit.start : unit.stop].view(torch_type(unit.dtype))
            blocks = [self._blocks[number] for number in self.layout.blocks[unit.first : unit.last]]
            rule = UnitRule(self.table.rules[unit.optimizer], blocks, memory, is_ready=False)
            self._rules[number] = rule
        return self._rules[number]

    def _has(self, number: int) -> bool:
        place = self._places.get(number, -1)
        if place < 0:
            return False
        unit = self.layout.unit_of(place)
        return unit in self._rules and self._rules[unit].has(place - self.layout.units[unit].first)

    def _state(self, number: int) -> BlockState:
        place = self._places[number]
        unit = self.layout.unit_of(place)
        return self._rule(unit).state(place - self.layout.units[unit].first)

    def _install(self, number: int, states: dict[int, BlockState]) -> None:
        if states:
            self.memory.break_seal(number)
            self._rule(number).install(states)
            self.memory.seal(number)

    def _keep(self, entry: int, number: int, gradient: torch.Tensor, values: dict[str, Any]) -> None:
        unit = self.layout.units[number]
        item = gradient.element_size()
        for place in range(unit.first, unit.last):
            if (block := self.layout.blocks[place]) in self._asked:
                start, stop = self.layout.offset(place) - unit.start, self.layout.offset(place + 1) - unit.start
                part = gradient[start // item : stop // item].clone()
                self._asked[block].append(_Kept(entry, part, values))

    def _caught_up(self, found: list[tuple[int, BlockState]], applied: int) -> Iterable[tuple[int, BlockState]]:
        """Apply the kept updates after entry `applied`. Blocks with the same updates are stepped together."""

        def likeness(pair: tuple[int, BlockState]) -> tuple[Any, ...]:
            block = self._blocks[pair[0]]
            numbers = [kept.number for kept in self._asked[pair[0]] if kept.number > applied]
            return (block.dtype, block.optimizer, block.group, numbers)

        for key, several in itertools.groupby(sorted(found, key=likeness), key=likeness):
            pairs = list(several)
            if not key[-1]:
                yield from pairs
                continue
            updates = [[kept for kept in self._asked[number] if kept.number > applied] for number, _ in pairs]
            blocks = [self._blocks[number] for number, _ in pairs]
            aside = self._replay(blocks, [state for _, state in pairs], updates)
            yield from ((number, aside.state(index)) for index, (number, _) in enumerate(pairs))

    def _replay(
        self, blocks: Sequence[Block], states: Sequence[BlockState], updates: Sequence[list[_Kept]]
    ) -> UnitRule:
        """Apply kept updates to a copy of these blocks. All blocks have the same updates."""
        memory = torch.cat([state.values for state in states])
        rule = UnitRule(self.table.rules[blocks[0].optimizer], blocks, memory, is_ready=False)
        rule.install(dict(enumerate(states)))
        for same in zip(*updates, strict=True):
            rule.step(torch.cat([kept.gradient for kept in same]), same[0].values)
        return rule
