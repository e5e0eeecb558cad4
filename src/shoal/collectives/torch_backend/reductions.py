"""torch's reductions as ours: the reduction, and the factor for each rank's contribution. Also sums of sparse tensors.

Ranks first have to exchange the sizes of sparse tensors, so these are summed in the caller's thread, in asynchronous
calls too. DDP sums them for embeddings with `sparse=True`.
"""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

from shoal.collectives import texts
from shoal.collectives.group import Group, Reduction
from shoal.collectives.mean import divide
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
    """`size`: number of ranks in the group."""
    number = hash(operator)
    if number == _SUM:
        return Reduction.SUM, 1.0
    if number not in _REDUCTIONS:
        raise UsageError(texts.no_reduction(name_of(operator)))
    if number == _AVERAGE:
        if dtype.is_floating_point:
            return Reduction.SUM, 1.0 / size
        if dtype is torch.bool:
            raise UsageError(texts.AVERAGE_OF_BOOLEANS)
        return Reduction.MEAN, 1.0
    if number == _SCALED:
        return Reduction.SUM, float(operator.factor)
    return _REDUCTIONS[number], 1.0


def sum_sparse(group: Group, tensors: list[torch.Tensor], operator: ReduceOp) -> None:
    """Each tensor becomes the sum over all ranks, coalesced. The calls of `group` must return when they are done."""
    for tensor in tensors:
        reduction, scale = reduction_of(operator, tensor.dtype, group.size)
        if reduction not in (Reduction.SUM, Reduction.MEAN):
            raise UsageError(texts.sparse_reduction(name_of(operator)))
        if tensor.layout is not torch.sparse_coo:
            raise UsageError(texts.sparse_layout(tensor.layout))
        total = _sum(group, tensor.detach().coalesce())
        if reduction is Reduction.MEAN:
            divide([total.values()], group.size)
        with torch.no_grad():
            tensor.copy_(total.mul_(scale) if scale != 1.0 else total)  # not into .data, which would keep its old size


def _sum(group: Group, own: torch.Tensor) -> torch.Tensor:
    counts = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(group.size)]
    label = f"torch sparse {tuple(own.shape)}"
    group.all_gather(counts, torch.tensor([own._nnz()], device="cpu"), label=label)
    indices, values = own.indices(), own.values()
    found = [int(count) for count in counts]
    all_indices = [indices.new_empty(indices.shape[0], count) for count in found]
    all_values = [values.new_empty(count, *values.shape[1:]) for count in found]
    group.all_gather(all_indices, indices, label=label)
    group.all_gather(all_values, values, label=label)
    joined = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), own.shape, device=own.device)
    return joined.coalesce()
