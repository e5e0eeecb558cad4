"""Servers' parts without servers: a table on several shards, gradients staged and applied, and torch beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shoal.parameters.blocks.block_state import TensorJoin, cut, pack, unpack
from shoal.parameters.blocks.byte_views import bytes_of, tensor_over
from shoal.parameters.blocks.memory_budget import MemoryBudget, SpaceBudget
from shoal.parameters.blocks.part_layout import PartLayout, part_order
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.ledger.effects import Update
from shoal.parameters.server.updates.shard import Shard
from shoal.parameters.server.updates.shard_update import ShardUpdate
from shoal.parameters.server.updates.staging import StagedPush, StagedPushes
from shoal.wire.parameter_messages import Stage, StageEnd
from shoal.wire.tables import Number, PushId, PushTerms, RuleSpec, TableSpec, TensorSpec

Groups = tuple[tuple[dict[str, Number], ...], ...]
# Every class that runs on servers, with values that reach its branches.
RULE_CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True, "foreach": True}),
    ("Adam", {"weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "fused": False}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True, "foreach": True}),
    ("NAdam", {"weight_decay": 0.1}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("Adadelta", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Rprop", {}),
    ("ASGD", {"weight_decay": 0.01, "t0": 2.0}),
]


def table_of(
    shapes: Sequence[tuple[int, ...]],
    rules: Sequence[tuple[str, Sequence[dict[str, Any]]]],
    *,
    dtype: str = "float32",
    owners: Sequence[tuple[int, int]] | None = None,
) -> TableSpec:
    """Tensors t0, t1, ...; `owners` are (optimizer, group) of each."""
    owners = owners or [(0, 0)] * len(shapes)
    tensors = tuple(
        TensorSpec(f"t{number}", shape, dtype, optimizer, group)
        for number, (shape, (optimizer, group)) in enumerate(zip(shapes, owners, strict=True))
    )
    return TableSpec("dense", tensors, tuple(RuleSpec(name, tuple(groups)) for name, groups in rules), 4096)


class Using:
    """A job that holds so much."""

    def __init__(self, held: int = 0, claimed: int = 0) -> None:
        self.held_bytes = held
        self.claimed_bytes = max(held, claimed)


def no_limit() -> SpaceBudget:
    return SpaceBudget(MemoryBudget(0, 0, lambda: 0), "job", 0, Using())


class Part:
    """One server."""

    def __init__(self, table: TableSpec, numbers: Sequence[int], *, is_shared: bool = False) -> None:
        self.layout = PartLayout(table, part_order(table, numbers))
        self.shard = Shard(table, self.layout, is_shared=is_shared)
        self.staging = StagedPushes(table, self.layout, no_limit())
        self._table = table

    def stage(self, push: PushId, gradients: Mapping[str, torch.Tensor]) -> StagedPush:
        """As a worker does over the network, unit by unit."""
        blocks = blocks_of(self._table)
        size = 0
        for unit in self.layout.units:
            note = Stage(push=push, view=1, keys=b"", first=unit.first, last=unit.last)
            some = [blocks[number] for number in self.layout.blocks[unit.first : unit.last]]
            names = [self._table.tensors[block.tensor].name for block in some]
            parts = [
                gradients[name].reshape(-1)[block.start : block.stop]
                for name, block in zip(names, some, strict=True)
                if name in gradients
            ]
            if parts:
                data = bytes_of(torch.cat(parts))
                self.staging.room(note, len(data))[:] = data
                self.staging.arrived(note)
                size += len(data)
        return self.staging.end(StageEnd(request=1, push=push, view=1, size=size))

    def assign(self, tensors: Mapping[str, torch.Tensor], states: Mapping[str, Mapping[str, Any]]) -> None:
        push = PushId(0, 0)
        numbers = self.layout.blocks
        names = [self._table.tensors[blocks_of(self._table)[number].tensor].name for number in numbers]
        found = [
            cut(self._table, number, tensors[name], states.get(name, {}))
            for number, name in zip(numbers, names, strict=True)
        ]
        described, data = pack(self._table, numbers, found)
        note = Stage(push=push, view=1, keys=b"", first=0, last=len(numbers), is_state=True, state=described)
        self.staging.room(note, len(data))[:] = data
        self.staging.arrived(note)
        staged = self.staging.end(StageEnd(request=1, push=push, view=1, size=len(data)))
        for unit in range(len(self.layout.units)):
            self.shard.assign_unit(staged, unit)
        self.staging.drop(push)


class Parts:
    """A table on several servers; blocks may be on more than one."""

    def __init__(self, table: TableSpec, holders: Sequence[Sequence[int]], *, is_shared: bool = False) -> None:
        """`holders` are the servers of each block."""
        servers = sorted({server for some in holders for server in some})
        self.table = table
        self.holders = holders
        self.parts = {
            server: Part(table, [n for n, some in enumerate(holders) if server in some], is_shared=is_shared)
            for server in servers
        }
        self._number = 0

    def assign(
        self, tensors: Mapping[str, torch.Tensor], states: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        for part in self.parts.values():
            part.assign(tensors, states or {})

    def update(
        self, pushes: Sequence[Mapping[str, torch.Tensor]], terms: Sequence[PushTerms], lr_factor: float = 1.0
    ) -> int:
        """Stage these gradients, apply their sum; as all servers of a group do."""
        self._number += 1
        ids = tuple(PushId(worker, self._number) for worker in range(len(pushes)))
        update = Update(self._number, ids, tuple(terms), tuple(one.scale for one in terms), lr_factor, self._number)
        mine = {}
        for server, part in self.parts.items():
            staged = [part.stage(push, gradients) for push, gradients in zip(ids, pushes, strict=True)]
            mine[server] = ShardUpdate(self.table, part.layout, update, staged)
        if update.is_clipped:
            self._clip(mine)
        for server, part in self.parts.items():
            for unit in range(len(part.layout.units)):
                part.shard.apply_unit(mine[server], unit)
            mine[server].close()
            for push in ids:
                part.staging.drop(push)
        return self._number

    def _clip(self, updates: Mapping[int, ShardUpdate]) -> None:
        squares = [0.0] * len(self.table.rules)
        for server, part in self.parts.items():
            updates[server].keep_sum(part.staging.pool)
            read = {number for number, some in enumerate(self.holders) if some[0] == server}
            for number, unit in enumerate(part.layout.units):
                squares[unit.optimizer] += updates[server].square(number, read)
        for update in updates.values():
            assert update.needs_norms
            update.clip(squares)
            assert not update.needs_norms

    def tensors(self, replica: int = 0) -> dict[str, dict[str, torch.Tensor]]:
        """Values and state, each block from one of its servers."""
        join = TensorJoin(self.table)
        for number, some in enumerate(self.holders):
            described, data = self.parts[some[replica % len(some)]].shard.extract([number])
            join.add(number, unpack(self.table, [number], described, tensor_over(data))[0])
        return join.tensors()

    def close(self) -> None:
        for part in self.parts.values():
            part.shard.close()


class Whole:
    """The same table on torch's own optimizers."""

    def __init__(self, table: TableSpec, tensors: Mapping[str, torch.Tensor]) -> None:
        self._table = table
        self.parameters = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in tensors.items()}
        self.optimizers = []
        for number, rule in enumerate(table.rules):
            groups: list[dict[str, Any]] = [{**values, "params": []} for values in rule.groups]
            for spec in table.tensors:
                if spec.optimizer == number:
                    groups[spec.group]["params"].append(self.parameters[spec.name])
            first = {k: v for k, v in rule.groups[0].items() if k == "initial_accumulator_value"}
            self.optimizers.append(getattr(torch.optim, rule.name)(groups, **first))

    def update(self, gradients: Mapping[str, torch.Tensor], groups: Groups, lr_factor: float = 1.0) -> None:
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name].clone()
        for optimizer, present in zip(self.optimizers, groups, strict=True):
            for group, values in zip(optimizer.param_groups, present, strict=False):
                group.update(values)
                group["lr"] *= lr_factor
            if present:
                optimizer.step()

    def check(self, found: Mapping[str, Mapping[str, torch.Tensor]], **tolerance: float) -> None:
        """Values and state are the same."""
        state = {parameter: kept for optimizer in self.optimizers for parameter, kept in optimizer.state.items()}
        for name, parameter in self.parameters.items():
            torch.testing.assert_close(found[name][""], parameter.data, **tolerance)
            kept = {key: value for key, value in state.get(parameter, {}).items() if value is not None}
            assert set(found[name]) - {""} == set(kept)
            for key, value in kept.items():
                torch.testing.assert_close(
                    found[name][key],
                    torch.as_tensor(value).float() if value.dim() == 0 and parameter.dim() else value,
                    **tolerance,
                )
