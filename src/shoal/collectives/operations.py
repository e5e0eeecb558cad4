"""From calls to operations: checks arguments, makes tensors flat for an exchanger, and numbers the operations in order.

Not here: when and in which thread an operation runs (`threaded_group`), and how (`exchanger`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch

from shoal.collectives import flat_tensors, mean, texts
from shoal.collectives.combining import combine
from shoal.collectives.dtypes import code_of
from shoal.collectives.exchanger import Exchanger, Operation, PointToPoint
from shoal.collectives.flat_tensors import Flat, HostFlat
from shoal.collectives.gpu.gpu_copies import StreamPoint, moment_of
from shoal.collectives.gpu.gpu_way import GpuTerms, GpuWay
from shoal.collectives.group import Group, Pending, Reduction
from shoal.errors import UsageError
from shoal.wire.frames import FrameKind, cut_label

Make = Callable[[int], Operation]  # from the operation's number
Work = Callable[[Operation, Exchanger], None]
Alone = Callable[[], None]  # what a group of one does instead
COLLECTIVE = "collective"  # the counter of collectives; each direction of a pair has a counter of its own


class Operations(Group):
    """The calls of a group. Subclasses decide when the work is done."""

    def __init__(
        self,
        exchanger: Exchanger | None,
        post: PointToPoint | None,
        generation: int,
        gpu: GpuTerms | None = None,
    ) -> None:
        """Without an exchanger this is a group of one. `post` carries sends and receives."""
        self.rank = 0 if exchanger is None else exchanger.rank
        self.size = 1 if exchanger is None else exchanger.size
        self.generation = generation
        self._exchanger = exchanger
        self._post = post
        self._gpu = None if exchanger is None else GpuWay(exchanger, gpu)
        self._sequences: Counter[str] = Counter()  # counts collectives, and operations in each direction of each pair

    def all_reduce(
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        *,
        label: str,
        reduction: Reduction = Reduction.SUM,
        scale: float = 1.0,
        key: str = "",
    ) -> Pending:
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        is_ready = all(map(flat_tensors.is_flat, given))  # as gradients are: nothing to check or prepare
        if is_mean := reduction is Reduction.MEAN and bool(given):
            reduction, label = mean.as_sum(reduction, label, given[0].dtype)
        self._check_reducible(given, label, reduction, scale, is_ready=is_ready)
        if key and (reduction is not Reduction.SUM or not given[0].is_floating_point()):
            raise UsageError(texts.only_sums(label, "encoded"))
        moment = None if is_ready else moment_of(given, label)
        elements = given[0].numel() if len(given) == 1 else sum(tensor.numel() for tensor in given)
        dtype, cut = given[0].dtype, cut_label(label)

        def make(number: int) -> Operation:
            return Operation(FrameKind.ALL_REDUCE, number, cut, dtype, elements, reduction, scale, is_ready, key)

        def work(operation: Operation, exchanger: Exchanger) -> None:
            if is_ready:
                exchanger.all_reduce(operation, given)
                if is_mean:
                    mean.divide((tensor.data for tensor in given), exchanger.size)
                return
            flats = [Flat(tensor) for tensor in given]
            exchanger.all_reduce(operation, [each.flat for each in flats])
            if is_mean:
                mean.divide((each.flat for each in flats), exchanger.size)
            for each in flats:
                each.write_back()

        def alone() -> None:
            for tensor in given if scale != 1.0 else ():
                tensor.data.mul_(scale)

        return self._start(COLLECTIVE, make, self._placed(moment, work), alone)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        tensors: list[torch.Tensor],
        *,
        label: str,
        reduction: Reduction = Reduction.SUM,
        scale: float = 1.0,
    ) -> Pending:
        self._check_list(tensors, output, "reduce_scatter", label)
        is_mean = reduction is Reduction.MEAN
        reduction, label = mean.as_sum(reduction, label, output.dtype)
        self._check_scale(output, label, reduction, scale)
        moment = moment_of([output, *tensors], label)
        elements = sum(tensor.numel() for tensor in tensors)
        code_of(output.dtype)
        combine(output.dtype, reduction)

        def make(number: int) -> Operation:
            kind, said = FrameKind.REDUCE_SCATTER, cut_label(label)
            return Operation(kind, number, said, output.dtype, elements, reduction, scale)

        def work(operation: Operation, exchanger: Exchanger) -> None:
            made = Flat(output, is_read=False)
            exchanger.reduce_scatter(operation, made.flat, [Flat(tensor).flat for tensor in tensors])
            if is_mean:
                mean.divide([made.flat], exchanger.size)
            made.write_back()

        def alone() -> None:
            flat_tensors.fill(output, tensors[0])
            if scale != 1.0:
                output.data.mul_(scale)

        return self._start(COLLECTIVE, make, self._placed(moment, work), alone)

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, *, label: str) -> Pending:
        self._check_list(outputs, tensor, "all_gather", label)
        moment = moment_of([*outputs, tensor], label)
        elements = sum(output.numel() for output in outputs)
        make = self._collective(FrameKind.ALL_GATHER, label, tensor.dtype, elements)

        def work(operation: Operation, exchanger: Exchanger) -> None:
            flats = [Flat(output, is_read=False) for output in outputs]
            exchanger.all_gather(operation, [each.flat for each in flats], Flat(tensor).flat)
            for each in flats:
                each.write_back()

        alone = partial(flat_tensors.fill, outputs[0], tensor)
        return self._start(COLLECTIVE, make, self._placed(moment, work), alone)

    def all_to_all(self, outputs: list[torch.Tensor], tensors: list[torch.Tensor], *, label: str) -> Pending:
        for given in (outputs, tensors):
            self._check_list(given, outputs[self.rank] if outputs else None, "all_to_all", label)
        moment = moment_of([*outputs, *tensors], label)
        make = self._collective(FrameKind.ALL_TO_ALL, label, outputs[0].dtype, 0)

        def work(operation: Operation, exchanger: Exchanger) -> None:
            flats = [Flat(output, is_read=False) for output in outputs]
            exchanger.all_to_all(operation, [each.flat for each in flats], [Flat(tensor).flat for tensor in tensors])
            for each in flats:
                each.write_back()

        alone = partial(flat_tensors.fill, outputs[0], tensors[0])
        return self._start(COLLECTIVE, make, self._placed(moment, work), alone)

    def broadcast(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:
        flat_tensors.check(tensor, label=label)
        self._check_rank(source, label)
        moment = moment_of([tensor], label)
        make = self._collective(FrameKind.BROADCAST, label, tensor.dtype, tensor.numel())

        def work(operation: Operation, exchanger: Exchanger) -> None:
            made = Flat(tensor, is_read=self.rank == source)
            exchanger.broadcast(operation, made.flat, source)
            if self.rank != source:
                made.write_back()

        return self._start(COLLECTIVE, make, self._placed(moment, work), alone=lambda: None)

    def send(self, tensor: torch.Tensor, target: int, *, label: str) -> Pending:
        moment = moment_of([tensor], label)
        make = self._point_to_point(tensor, target, label)

        def work(operation: Operation, _exchanger: Exchanger) -> None:
            assert self._post is not None
            self._post.send(operation, HostFlat(tensor).flat, target)

        return self._start(f"to {target}", make, self._posted(moment, work), alone=lambda: None)

    def receive(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:
        moment = moment_of([tensor], label)
        make = self._point_to_point(tensor, source, label)

        def work(operation: Operation, _exchanger: Exchanger) -> None:
            assert self._post is not None
            made = HostFlat(tensor, is_read=False)
            self._post.receive(operation, made.flat, source)
            made.write_back()

        return self._start(f"from {source}", make, self._posted(moment, work), alone=lambda: None)

    def _placed(self, moment: StreamPoint | None, work: Work) -> Work:
        """The work, done where its tensors are: on a GPU it begins after `moment`."""
        way = self._gpu
        if moment is None or way is None:
            return work
        return lambda operation, exchanger: way.run(moment, partial(work, operation), exchanger)

    def _posted(self, moment: StreamPoint | None, work: Work) -> Work:
        """The same for a send or a receive, in which not all ranks take part."""
        way = self._gpu
        if moment is None or way is None:
            return work
        return lambda operation, exchanger: way.send_or_receive(moment, partial(work, operation), exchanger)

    @property
    def collectives_started(self) -> int:
        return self._sequences[COLLECTIVE]

    @abstractmethod
    def _start(self, sequence: str, make: Make, work: Work, alone: Alone) -> Pending:
        """Do the work after all earlier operations; a group of one does `alone` at once instead.

        `sequence` names the operation's counter. An operation gets its number and its place in the queue together.
        """

    def _collective(self, kind: FrameKind, label: str, dtype: torch.dtype, elements: int) -> Make:
        code_of(dtype)
        return lambda number: Operation(kind, number, cut_label(label), dtype, elements)

    def _point_to_point(self, tensor: torch.Tensor, peer: int, label: str) -> Make:
        flat_tensors.check(tensor, label=label)
        self._check_rank(peer, label)
        if peer == self.rank:
            raise UsageError(texts.with_itself(label, self.rank))
        code_of(tensor.dtype)
        dtype, elements = tensor.dtype, tensor.numel()
        return lambda number: Operation(FrameKind.POINT_TO_POINT, number, cut_label(label), dtype, elements)

    def _numbered(self, sequence: str, make: Make) -> Operation:
        """The caller holds the lock that also guards the queue, since calls come from several threads."""
        number = self._sequences[sequence]
        self._sequences[sequence] = number + 1
        return make(number)

    def _check_rank(self, rank: int, label: str) -> None:
        if not 0 <= rank < self.size:
            raise UsageError(texts.no_rank(label, rank, self.size))

    def _check_reducible(
        self, tensors: Sequence[torch.Tensor], label: str, reduction: Reduction, scale: float, *, is_ready: bool
    ) -> None:
        if not tensors:
            raise UsageError(texts.no_tensor(label))
        for tensor in () if is_ready else tensors:
            flat_tensors.check(tensor, label=label)
        dtype = tensors[0].dtype
        combine(dtype, reduction)
        if len(tensors) > 1 and any(tensor.dtype is not dtype for tensor in tensors):
            raise UsageError(texts.several_dtypes(label, "all_reduce", dtype))
        if scale != 1.0:
            self._check_scale(tensors[0], label, reduction, scale)

    def _check_scale(self, tensor: torch.Tensor, label: str, reduction: Reduction, scale: float) -> None:
        if scale != 1.0 and (reduction is not Reduction.SUM or not tensor.dtype.is_floating_point):
            raise UsageError(texts.only_sums(label, "scaled"))

    def _check_list(self, tensors: Sequence[torch.Tensor], own: torch.Tensor | None, what: str, label: str) -> None:
        if len(tensors) != self.size:
            raise UsageError(texts.wrong_count(label, what, self.size, len(tensors)))
        for tensor in tensors if own is None else (own, *tensors):
            flat_tensors.check(tensor, label=label)
        if own is None:
            return
        if any(tensor.dtype != own.dtype for tensor in tensors):
            raise UsageError(texts.several_dtypes(label, what, own.dtype))
        if tensors[self.rank].numel() != own.numel():
            shapes = tuple(tensors[self.rank].shape), tuple(own.shape)
            raise UsageError(texts.unequal_shapes(label, what, self.rank, shapes))
