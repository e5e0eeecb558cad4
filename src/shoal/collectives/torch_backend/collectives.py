"""torch's collectives on a Shoal group: every call of `torch.distributed.ProcessGroup` in terms of our five.

Synchronous calls run in the caller's thread, others in the group's. Operations of a group run in the order of the
calls, so if one call makes several operations, waiting for the last is enough. Not here: sends and receives, and making
and closing the group (`process_group`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from shoal.collectives.group import Group, Pending
from shoal.collectives.torch_backend.calls import as_list, as_lists, in_torch_errors, options
from shoal.collectives.torch_backend.layout import equal_parts, label_of, nothing_much, split_parts
from shoal.collectives.torch_backend.reductions import reduction_of, sum_sparse
from shoal.collectives.torch_backend.work import ShoalWork

Tensors = list[torch.Tensor]


class Collectives:
    """The calls. Results of a call are the tensors it fills, in the shape in which they were given."""

    _group: Group  # for asynchronous calls
    _here: Group  # the same group, for synchronous calls
    _place: int  # this rank
    _count: int  # of ranks
    _coalesced: list[ShoalWork] | None = None  # what was started since `_start_coalescing`

    @in_torch_errors
    def allreduce(self, tensors: torch.Tensor | Tensors, opts: Any = None) -> ShoalWork:
        given, settings = as_list(tensors), options(opts, AllreduceOptions)
        first = given[0]
        if first.is_sparse:
            sum_sparse(self._here, given, settings.reduceOp)
            return ShoalWork(None, given)
        reduction, scale = reduction_of(settings.reduceOp, first.dtype, self._count)
        run = self._group if settings.asyncOp else self._here
        pending = run.all_reduce(given, label=label_of(first), reduction=reduction, scale=scale)
        return self._work(settings.asyncOp, pending, given)

    @in_torch_errors
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> ShoalWork:
        settings = options(opts, AllreduceCoalescedOptions)
        reduction, scale = reduction_of(settings.reduceOp, tensors[0].dtype, self._count)
        run = self._group if settings.asyncOp else self._here
        pending = run.all_reduce(tensors, label=f"{len(tensors)} tensors", reduction=reduction, scale=scale)
        return self._work(settings.asyncOp, pending, tensors)

    @in_torch_errors
    def broadcast(self, tensors: torch.Tensor | Tensors, opts: Any = None) -> ShoalWork:
        given, settings = as_list(tensors), options(opts, BroadcastOptions)
        run = self._group if settings.asyncOp else self._here
        pending = None
        for tensor in given:
            pending = run.broadcast(tensor, settings.rootRank, label=label_of(tensor))
        return self._work(settings.asyncOp, pending, given)

    @in_torch_errors
    def reduce(self, tensors: torch.Tensor | Tensors, opts: Any = None, operator: Any = None) -> ShoalWork:
        given, settings = as_list(tensors), options(opts, ReduceOptions, operator)
        run = self._group if settings.asyncOp else self._here
        pending = None
        for tensor in given:
            nothing = tensor.data.new_empty(0)
            parts = [nothing] * self._count
            parts[settings.rootRank] = tensor
            output = tensor if self._place == settings.rootRank else nothing
            reduction, scale = reduction_of(settings.reduceOp, tensor.dtype, self._count)
            pending = run.reduce_scatter(output, parts, label=label_of(tensor), reduction=reduction, scale=scale)
        return self._work(settings.asyncOp, pending, given)

    @in_torch_errors
    def allgather(self, outputs: Any, inputs: torch.Tensor | Tensors, opts: Any = None) -> ShoalWork:
        settings = options(opts, AllgatherOptions)
        run = self._group if settings.asyncOp else self._here
        pending = None
        for filled, tensor in zip(as_lists(outputs), as_list(inputs), strict=True):
            pending = run.all_gather(filled, tensor, label="torch")
        return self._work(settings.asyncOp, pending, outputs)

    @in_torch_errors
    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> ShoalWork:
        """`outputs[r][i]` becomes rank r's `inputs[i]`."""
        settings = options(opts, AllgatherOptions)
        run = self._group if settings.asyncOp else self._here
        pending = None
        for place, tensor in enumerate(inputs):
            pending = run.all_gather([filled[place] for filled in outputs], tensor, label="torch")
        return self._work(settings.asyncOp, pending, outputs)

    @in_torch_errors
    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> ShoalWork:
        settings = options(opts, AllgatherOptions)
        pending = self._gather_whole(self._group if settings.asyncOp else self._here, output, given)
        return self._work(settings.asyncOp, pending, [output])

    @in_torch_errors
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ShoalWork:
        settings = options(opts, AllgatherOptions)
        run = self._group if settings.asyncOp else self._here
        pending = None
        for output, given in zip(outputs, inputs, strict=True):
            pending = self._gather_whole(run, output, given)
        return self._work(settings.asyncOp, pending, outputs)

    @in_torch_errors
    def reduce_scatter(self, outputs: torch.Tensor | Tensors, inputs: Any, opts: Any = None) -> ShoalWork:
        settings = options(opts, ReduceScatterOptions)
        run = self._group if settings.asyncOp else self._here
        pending = None
        for output, parts in zip(as_list(outputs), as_lists(inputs), strict=True):
            pending = self._reduce_parts(run, output, parts, settings)
        return self._work(settings.asyncOp, pending, as_list(outputs))

    @in_torch_errors
    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> ShoalWork:
        return self._scatter_whole([output], [given], opts)

    @in_torch_errors
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ShoalWork:
        return self._scatter_whole(outputs, inputs, opts)

    @in_torch_errors
    def gather(self, outputs: Any, inputs: torch.Tensor | Tensors, opts: Any = None) -> ShoalWork:
        settings, tensor = options(opts, GatherOptions), as_list(inputs)[0]
        nothing = tensor.data.new_empty(0)
        given, filled = [nothing] * self._count, [nothing] * self._count
        given[settings.rootRank] = tensor
        if self._place == settings.rootRank:
            (filled,) = as_lists(outputs)
        return self._trade(filled, given, settings, outputs)

    @in_torch_errors
    def scatter(self, outputs: torch.Tensor | Tensors, inputs: Any, opts: Any = None) -> ShoalWork:
        settings, tensor = options(opts, ScatterOptions), as_list(outputs)[0]
        nothing = tensor.data.new_empty(0)
        given, filled = [nothing] * self._count, [nothing] * self._count
        filled[settings.rootRank] = tensor
        if self._place == settings.rootRank:
            (given,) = as_lists(inputs)
        return self._trade(filled, given, settings, as_list(outputs))

    @in_torch_errors
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ShoalWork:
        return self._trade(outputs, inputs, options(opts, AllToAllOptions), outputs)

    @in_torch_errors
    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> ShoalWork:
        filled = split_parts(output, output_sizes, self._count, "output")
        parts = split_parts(given, input_sizes, self._count, "input")
        return self._trade(filled, parts, options(opts, AllToAllOptions), [output])

    @in_torch_errors
    def barrier(self, opts: Any = None) -> ShoalWork:
        settings = options(opts, BarrierOptions)
        limit = settings.timeout.total_seconds()
        is_limited = limit > 0  # torch passes a negative time for "none given"
        run = self._group if settings.asyncOp or is_limited else self._here
        pending = run.all_reduce(nothing_much(), label="barrier")
        if is_limited and not pending.wait(limit):
            self._run_out("", limit)
            pending.wait()
        return self._work(settings.asyncOp, pending, [])

    # Older names of the same calls.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    @abstractmethod
    def _run_out(self, what: str, limit: float) -> None:
        """The running operation took too long: the group becomes unusable."""

    def _gather_whole(self, run: Group, output: torch.Tensor, given: torch.Tensor) -> Pending:
        return run.all_gather(equal_parts(output, self._count, given.numel()), given, label=label_of(given))

    def _scatter_whole(self, outputs: Tensors, inputs: Tensors, opts: Any) -> ShoalWork:
        settings = options(opts, ReduceScatterOptions)
        run = self._group if settings.asyncOp else self._here
        pending = None
        for output, given in zip(outputs, inputs, strict=True):
            parts = equal_parts(given, self._count, output.numel())
            pending = self._reduce_parts(run, output, parts, settings)
        return self._work(settings.asyncOp, pending, outputs)

    def _reduce_parts(self, run: Group, output: torch.Tensor, parts: Tensors, settings: Any) -> Pending:
        reduction, scale = reduction_of(settings.reduceOp, output.dtype, self._count)
        return run.reduce_scatter(output, parts, label="torch", reduction=reduction, scale=scale)

    def _trade(self, outputs: Tensors, inputs: Tensors, settings: Any, result: Any) -> ShoalWork:
        run = self._group if settings.asyncOp else self._here
        return self._work(settings.asyncOp, run.all_to_all(outputs, inputs, label="torch"), result)

    def _work(self, is_asynchronous: bool, pending: Pending | None, result: Any) -> ShoalWork:
        work = ShoalWork(pending if is_asynchronous else None, result)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work
