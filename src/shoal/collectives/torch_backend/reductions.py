"""torch's reduction operators as ours: which reduction, and what each rank's contribution is multiplied by. Pure."""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

from shoal.collectives.group import Reduction
from shoal.errors import UsageError

# By the operator's number, which is its hash: reading its name costs four times as much.
_REDUCTIONS: dict[int, Reduction] = {
    ReduceOp.SUM.value: Reduction.SUM,
    ReduceOp.AVG.value: Reduction.SUM,
    ReduceOp.PREMUL_SUM.value: Reduction.SUM,
    ReduceOp.PRODUCT.value: Reduction.PRODUCT,
    ReduceOp.MIN.value: Reduction.MIN,
    ReduceOp.MAX.value: Reduction.MAX,
    ReduceOp.BAND.value: Reduction.AND,
    ReduceOp.BOR.value: Reduction.OR,
    ReduceOp.BXOR.value: Reduction.XOR,
}
_SUM = ReduceOp.SUM.value
_AVERAGE = ReduceOp.AVG.value
_SCALED = ReduceOp.PREMUL_SUM.value


def name_of(operator: ReduceOp) -> str:
    return ReduceOp.RedOpType(hash(operator)).name


def reduction_of(operator: ReduceOp, dtype: torch.dtype, size: int) -> tuple[Reduction, float]:
    """`size`: of the group."""
    number = hash(operator)
    if number == _SUM:
        return Reduction.SUM, 1.0
    if number not in _REDUCTIONS:
        raise UsageError(f"the backend shoal has no reduction {name_of(operator)}")
    if number == _AVERAGE:
        if dtype.is_floating_point:
            return Reduction.SUM, 1.0 / size
        if dtype is torch.bool:
            raise UsageError("ReduceOp.AVG has no meaning for booleans; use ReduceOp.MAX or MIN, or convert the tensor")
        return Reduction.MEAN, 1.0
    if number == _SCALED:
        return Reduction.SUM, float(operator.factor)
    return _REDUCTIONS[number], 1.0
