"""Which optimizers run on servers, and with which values: classes of torch.optim by name, on flat parts of tensors.

A server holds pieces of tensors, so only rules that treat every element by itself can run there. Each rule is described
by the state that it keeps: one value per element, or one number for all. Groups' values come with every push and are
checked here before anything is applied. No code is sent: a class that is not in `RULES` is refused, with alternatives.

Not here: the memory that optimizers work on (`unit_rule`, `shard`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.errors import ServerRefused, UsageError
from shoal.parameters import texts
from shoal.parameters.blocks.table_blocks import blocks_of, check_cut, item_bytes
from shoal.wire.tables import Number, PushTerms, TableSpec


@dataclass(frozen=True)
class Rule:
    """The state that one optimizer class keeps for every parameter."""

    name: str
    tensors: tuple[str, ...]  # one value per element
    scalars: tuple[str, ...] = ()  # one number for the whole parameter
    only_with: Mapping[str, str] = field(default_factory=dict)  # tensor -> the group's setting that turns it on
    is_flexible: bool = False  # such a tensor may come and go with that setting during training
    has_fused: bool = False  # torch has a fused loop for the CPU

    def kept(self, values: Mapping[str, Number]) -> tuple[str, ...]:
        """Names of the tensors that are kept under a group's values."""
        full = _defaults(self.name) | dict(values)
        return tuple(name for name in self.tensors if name not in self.only_with or full[self.only_with[name]])


_MOMENTS = ("exp_avg", "exp_avg_sq")
RULES = {
    rule.name: rule
    for rule in (
        Rule("SGD", ("momentum_buffer",), (), {"momentum_buffer": "momentum"}, is_flexible=True, has_fused=True),
        Rule("Adam", (*_MOMENTS, "max_exp_avg_sq"), ("step",), {"max_exp_avg_sq": "amsgrad"}, has_fused=True),
        Rule("AdamW", (*_MOMENTS, "max_exp_avg_sq"), ("step",), {"max_exp_avg_sq": "amsgrad"}, has_fused=True),
        Rule("NAdam", _MOMENTS, ("step", "mu_product")),
        Rule("RAdam", _MOMENTS, ("step",)),
        Rule("Adamax", ("exp_avg", "exp_inf"), ("step",)),
        Rule("Adadelta", ("square_avg", "acc_delta"), ("step",)),
        Rule("Adagrad", ("sum",), ("step",), has_fused=True),
        Rule(
            "RMSprop",
            ("square_avg", "momentum_buffer", "grad_avg"),
            ("step",),
            {"momentum_buffer": "momentum", "grad_avg": "centered"},
        ),
        Rule("Rprop", ("prev", "step_size"), ("step",)),
        Rule("ASGD", ("ax",), ("step", "eta", "mu")),
    )
}

MOST_GROUPS = 1 << 13  # of all optimizers of a table
_REFUSED_FLAGS = ("capturable", "differentiable")  # concern graphs within one process
# In torch 2.13 the fused loop of SGD is wrong for short bfloat16 tensors, so half types use the plain one.
_FUSED_TYPES = ("float32", "float64")


def check_rule(name: str) -> Rule:
    """The rule of that name; `ServerRefused` if it cannot run in parts."""
    if name in RULES:
        return RULES[name]
    why = texts.WHY_NOT_IN_PARTS.get(name, texts.NOT_BY_ELEMENT)
    raise ServerRefused(texts.optimizer_not_in_parts(name, why, RULES), kind="rule")


def check_table(table: TableSpec) -> None:
    """Refuses a table whose tensors or rules a server cannot hold. Allocates nothing for the table."""
    if table.kind != "dense":
        raise ServerRefused(texts.not_dense(table.kind), kind="table")
    if (count := sum(len(rule.groups) for rule in table.rules)) > MOST_GROUPS:
        raise ServerRefused(texts.too_many_groups(count, MOST_GROUPS), kind="table")
    for number, rule in enumerate(table.rules):
        check_rule(rule.name)
        for group in rule.groups:
            _check_values(rule.name, number, group)
            _try_out(rule.name, number, group)
    for tensor in table.tensors:
        rules = table.rules
        if not (0 <= tensor.optimizer < len(rules) and 0 <= tensor.group < len(rules[tensor.optimizer].groups)):
            raise ServerRefused(texts.group_missing(tensor.name, tensor.group, tensor.optimizer), kind="table")
        if any(length < 0 for length in tensor.shape):
            raise ServerRefused(texts.negative_shape(tensor.name, tensor.shape), kind="table")
    try:
        check_cut(table)
    except UsageError as error:
        raise ServerRefused(str(error), kind="table") from None


def check_terms(table: TableSpec, terms: PushTerms) -> None:
    """Refuses what could not be applied later. Values that can be computed with are allowed, sensible or not."""
    for what, count in (("groups", len(terms.groups)), ("clip_norms", len(terms.clip_norms))):
        if count not in (0, len(table.rules)):
            raise _bad(f"a push has {what} of {count} optimizers; the table has {len(table.rules)}")
    for number, groups in enumerate(terms.groups):
        check_groups(table, number, groups)


def check_groups(table: TableSpec, number: int, groups: Sequence[Mapping[str, Number]]) -> None:
    """Refuses values of one optimizer that do not fit the state it keeps. An empty `groups` is accepted."""
    spec, rule = table.rules[number], RULES[table.rules[number].name]
    if len(groups) not in (0, len(spec.groups)):
        raise _bad(texts.groups_changed(number, len(groups), len(spec.groups)))
    for values, first in zip(groups, spec.groups, strict=False):
        _check_values(spec.name, number, values)
        if not rule.is_flexible and (was := rule.kept(first)) != (needed := rule.kept(values)):
            raise _bad(texts.state_changed(spec.name, number, was, needed))


def needed_bytes(table: TableSpec, numbers: Iterable[int]) -> int:
    """Bytes that these blocks take with their optimizers' state."""
    blocks, copies = blocks_of(table), _copies(table)
    return sum(blocks[number].size * copies[blocks[number].optimizer, blocks[number].group] for number in numbers)


def whole_bytes(table: TableSpec) -> int:
    """Bytes that one replica of a table takes with its optimizers' state, computed without cutting it into blocks."""
    copies = _copies(table)
    return sum(
        math.prod(tensor.shape) * item_bytes(tensor) * copies[tensor.optimizer, tensor.group]
        for tensor in table.tensors
    )


def _copies(table: TableSpec) -> dict[tuple[int, int], int]:
    """By optimizer and group: values kept per element, the parameter's own included."""
    return {
        (optimizer, group): 1 + len(RULES[rule.name].kept(values))
        for optimizer, rule in enumerate(table.rules)
        for group, values in enumerate(rule.groups)
    }


def present_values(name: str, values: Mapping[str, Number], dtype: str, factor: float = 1.0) -> dict[str, Any]:
    """A group's values for a flat CPU parameter of `dtype`, with the learning rate times `factor`."""
    defaults = _defaults(name)
    found = defaults | {key: value for key, value in values.items() if key in defaults}
    found["lr"] *= factor
    if "fused" in defaults:
        is_wanted = found["fused"]
        if is_wanted is None and not found["foreach"]:
            is_wanted = _gains_by_fused(name, found)
        found["fused"] = bool(is_wanted) and dtype in _FUSED_TYPES
    found["foreach"] = bool(found["foreach"]) and not found.get("fused")
    return found


def make_optimizer(name: str, parameters: list[torch.nn.Parameter], values: dict[str, Any]) -> torch.optim.Optimizer:
    """`values` are `present_values`."""
    # Adagrad makes its state in the constructor, and takes the initial value only from this argument.
    first = {key: value for key, value in values.items() if key == "initial_accumulator_value"}
    made: torch.optim.Optimizer = _class(name)([{"params": parameters, **values}], **first)
    return made


def _gains_by_fused(name: str, values: Mapping[str, Any]) -> bool:
    """Measured on 100 MB: Adam 3 times as fast, SGD 1.6 times where it needs a temporary copy; plain SGD is slower."""
    return RULES[name].has_fused and (name != "SGD" or bool(values["weight_decay"]))


def _class(name: str) -> Any:
    return getattr(torch.optim, name)


@functools.cache
def _defaults(name: str) -> dict[str, Any]:
    """All values that a group of this class has. Not to be changed."""
    defaults: dict[str, Any] = _class(name)([torch.nn.Parameter(torch.empty(0))]).defaults
    return defaults


def _check_values(name: str, number: int, values: Mapping[str, Number]) -> None:
    defaults = _defaults(name)
    for key, value in values.items():
        if key in _REFUSED_FLAGS and value:
            raise ServerRefused(texts.flag_of_one_process(name, number, key), kind="rule")
        if key in defaults and not _fits(defaults[key], value):
            raise _bad(texts.wrong_value(name, number, f"{key}={value!r}", defaults[key]))


def _try_out(name: str, number: int, values: Mapping[str, Number]) -> None:
    """Run torch's own checks of values, which would otherwise raise only once a server holds the table."""
    try:
        parameters = [torch.nn.Parameter(torch.empty(0), requires_grad=False)]
        make_optimizer(name, parameters, present_values(name, values, "float32"))
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        raise ServerRefused(texts.optimizer_not_made(name, number, error), kind="rule") from None


def _fits(default: Any, value: Number) -> bool:
    if default is None or isinstance(default, bool):
        return isinstance(value, bool) or (value is None and default is None)
    if isinstance(default, tuple):
        return isinstance(value, tuple) and len(value) == len(default)
    return isinstance(value, int | float) and not isinstance(value, bool)


def clip_factor(most: float | None, square: float) -> float:
    """Factor for a gradient whose squared norm is `square`, as in torch.nn.utils.clip_grad_norm_."""
    return 1.0 if most is None else min(1.0, most / (math.sqrt(square) + 1e-6))


def _bad(reason: str) -> ServerRefused:
    return ServerRefused(reason, kind="bad-request")
