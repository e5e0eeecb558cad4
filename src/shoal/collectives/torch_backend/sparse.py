"""Sums of sparse tensors: every rank gets everybody's indices and values and adds them up.

Sizes are only known on the way, so this runs in the caller's thread also for asynchronous calls. DDP uses it for
embeddings with `sparse=True`.
"""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

from shoal.collectives.group import Group, Reduction
from shoal.collectives.mean import divide
from shoal.collectives.torch_backend.reductions import name_of, reduction_of
from shoal.errors import UsageError


def sum_sparse(group: Group, tensors: list[torch.Tensor], operator: ReduceOp) -> None:
    """Each tensor becomes the sum over all ranks, coalesced. `group` is one whose calls return when they are done."""
    for tensor in tensors:
        reduction, scale = reduction_of(operator, tensor.dtype, group.size)
        if reduction not in (Reduction.SUM, Reduction.MEAN):
            raise UsageError(f"sparse tensors can only be summed, not reduced by {name_of(operator)}")
        if tensor.layout is not torch.sparse_coo:
            raise UsageError(f"only sparse tensors of layout torch.sparse_coo can be summed, not {tensor.layout}")
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
