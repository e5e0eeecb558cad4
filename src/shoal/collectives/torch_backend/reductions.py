"""torch's reduction operators as ours: which reduction, and what each rank's contribution is multiplied by. Pure."""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

from shoal.collectives.group import Reduction
from shoal.errors import UsageError

# By the operator's number, which is its hash: reading its name costs four times as much.
_REDUCTIONS: dict[int, Reduction] = {
    int(ReduceOp.SUM): Reduction.SUM,
    int(ReduceOp.AVG): Reduction.SUM,
    int(ReduceOp.PREMUL_SUM): Reduction.SUM,
    int(ReduceOp.PRODUCT): Reduction.PRODUCT,
    int(ReduceOp.MIN): Reduction.MIN,
    int(ReduceOp.MAX): Reduction.MAX,
    int(ReduceOp.BAND): Reduction.AND,
    int(ReduceOp.BOR): Reduction.OR,
    int(ReduceOp.BXOR): Reduction.XOR,
}
_SUM = int(ReduceOp.SUM)
_AVERAGE = int(ReduceOp.AVG)
_SCALED = int(ReduceOp.PREMUL_SUM)


def reduction_of(operator: ReduceOp, dtype: torch.dtype, size: int) -> tuple[Reduction, float]:
    """`size`: of the group."""
    number = hash(operator)
    if number == _SUM:
        return Reduction.SUM, 1.0
    if number not in _REDUCTIONS:
        raise UsageError(f"the backend shoal has no reduction {operator.op}")
    if number == _AVERAGE:
        if not dtype.is_floating_point:
            raise UsageError(f"ReduceOp.AVG needs floating point numbers, not {dtype}; sum them and divide")
        return Reduction.SUM, 1.0 / size
    if number == _SCALED:
        return Reduction.SUM, float(operator.factor)
    return _REDUCTIONS[number], 1.0
