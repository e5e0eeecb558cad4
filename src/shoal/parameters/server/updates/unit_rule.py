"""One unit of a server's part and its optimizer: flat memory that steps are applied to.

Blocks with the same numbers in their state (`step`) are stepped as one flat parameter, a *run*; the numbers differ only
where blocks came from different checkpoints. A block whose length is no multiple of `SMOOTH` is a run by itself, since
torch computes the end of a tensor in another way than its middle. So every block gets the same bits on every replica,
whatever lies beside it. Not here: gradients (`shard_update`), which blocks are there (`shard`).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.parameters.blocks.block_state import BlockState
from shoal.parameters.blocks.table_blocks import Block
from shoal.parameters.server.updates.update_rules import RULES, make_optimizer, present_values
from shoal.wire.tables import RuleSpec

SMOOTH = 64  # elements: two vectors of the widest kind, in the smallest dtype


@dataclass(frozen=True)
class _Run:
    """Blocks `first` to `last` of the unit."""

    first: int
    last: int
    parameter: torch.nn.Parameter
    optimizer: torch.optim.Optimizer


class UnitRule:
    """Blocks of one dtype and one optimizer's group, side by side in memory."""

    def __init__(self, rule: RuleSpec, blocks: Sequence[Block], memory: torch.Tensor, *, is_ready: bool) -> None:
        """`memory` is flat and of the blocks' dtype. `is_ready`: it contains the blocks' values already."""
        self._rule = RULES[rule.name]
        self._first_values = present_values(rule.name, rule.groups[blocks[0].group], blocks[0].dtype)
        self._memory = memory
        self._starts = [0, *itertools.accumulate(block.stop - block.start for block in blocks)]  # elements
        self._ready = [is_ready] * len(blocks)  # has values; steps skip the others
        self._runs: list[_Run] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._arrange([BlockState(self._values(index)) for index in range(len(blocks))])

    @property
    def is_ready(self) -> bool:
        """All blocks have values."""
        return all(self._ready)

    def has(self, index: int) -> bool:
        return self._ready[index]

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state."""
        kept = (state for optimizer in self._optimizers for state in optimizer.state.values())
        return sum(tensor.numel() * tensor.element_size() for state in kept for tensor in state.values())

    def step(self, gradient: torch.Tensor, values: Mapping[str, Any]) -> None:
        """One step of all blocks that are ready, with a group's `present_values`. `gradient` is only read."""
        for run in self._runs:
            if self._ready[run.first]:
                run.parameter.grad = gradient[self._starts[run.first] : self._starts[run.last]]
        for optimizer in self._optimizers:
            optimizer.param_groups[0].update(values)
            optimizer.step()
        for run in self._runs:
            run.parameter.grad = None  # its memory may belong to a worker's arena or a buffer

    def state(self, index: int) -> BlockState:
        """Values and state of one block, as views."""
        run = self._runs[bisect.bisect_right(self._runs, index, key=lambda run: run.first) - 1]
        kept = run.optimizer.state.get(run.parameter, {})
        start = self._starts[run.first]
        part = slice(self._starts[index] - start, self._starts[index + 1] - start)
        return BlockState(
            self._values(index),
            {name: kept[name][part] for name in self._rule.tensors if kept.get(name) is not None},
            {name: float(kept[name]) for name in self._rule.scalars if name in kept},
        )

    def install(self, states: Mapping[int, BlockState]) -> None:
        """Replace values and state of blocks with copies; these blocks are ready from now on."""
        mine = [self.state(index) for index in range(len(self._ready))]
        for index, state in states.items():
            self._values(index).copy_(state.values)
            mine[index] = BlockState(self._values(index), state.tensors, state.scalars)
            self._ready[index] = True
        self._arrange(mine)

    def _values(self, index: int) -> torch.Tensor:
        return self._memory[self._starts[index] : self._starts[index + 1]]

    def _arrange(self, states: Sequence[BlockState]) -> None:
        """Make new runs with copies of these states."""

        def likeness(index: int) -> tuple[object, ...]:
            is_smooth = (self._starts[index + 1] - self._starts[index]) % SMOOTH == 0
            state = states[index]
            scalars = tuple(sorted(state.scalars.items()))
            return (-1 if is_smooth else index, self._ready[index], sorted(state.tensors), scalars)

        by_form: dict[tuple[str, ...], list[range]] = {}
        for _, run in itertools.groupby(range(len(states)), key=likeness):
            indexes = list(run)
            form = tuple(sorted(states[indexes[0]].tensors))
            by_form.setdefault(form, []).append(range(indexes[0], indexes[-1] + 1))
        self._runs, self._optimizers = [], []
        for runs in by_form.values():  # torch's fused loops want all parameters of a call to have state, or none
            self._optimize(runs, states)
        self._runs.sort(key=lambda run: run.first)

    def _optimize(self, runs: Sequence[range], states: Sequence[BlockState]) -> None:
        flat = [self._memory[self._starts[run.start] : self._starts[run.stop]] for run in runs]
        parameters = [torch.nn.Parameter(values, requires_grad=False) for values in flat]
        optimizer = make_optimizer(self._rule.name, parameters, self._first_values)
        for run, parameter in zip(runs, parameters, strict=True):
            one = states[run.start]
            if one.tensors or one.scalars:
                optimizer.state[parameter] = {
                    name: torch.cat([states[index].tensors[name] for index in run]) for name in one.tensors
                } | {name: torch.tensor(value, dtype=torch.float32) for name, value in one.scalars.items()}
            self._runs.append(_Run(run.start, run.stop, parameter, optimizer))
        self._optimizers.append(optimizer)
