"""The flat buffers of one model's gradients, filled by backward and reduced while it goes on.

Covers the memory and what one exchange does to it. Not here: when an exchange starts and ends (`gradient_exchange`).

A parameter's gradient is copied once, scaled, from where autograd made it into its slot; after the exchange the
parameter's `.grad` is a view of that slot. What `.grad` held before is added, so that `backward()` accumulates for
n workers as it does for one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.collectives.group import Group, Pending
from shoal.strategies.buckets import BucketPlan, ParameterSize, plan_buckets


class _Bucket:
    def __init__(self, plan: BucketPlan, parameters: Sequence[torch.Tensor]) -> None:
        self.plan = plan
        dtype = parameters[plan.slots[0].parameter].dtype
        self.flat = torch.zeros(plan.elements, dtype=dtype)
        self.views = [
            _slot_view(self.flat[slot.offset : slot.offset + slot.elements], parameters[slot.parameter])
            for slot in plan.slots
        ]
        self.flags = self.flat[plan.flags_at :]
        self.used = [0.0] * len(plan.slots)  # this worker's flags
        self.missing = len(plan.slots)  # gradients that this exchange still waits for
        self.pending: Pending | None = None

    def clear(self) -> None:
        self.used = [0.0] * len(self.plan.slots)
        self.missing = len(self.plan.slots)
        self.pending = None


class GradientBuckets:
    """Flat gradient memory of a list of parameters that require gradients."""

    def __init__(self, parameters: Sequence[torch.Tensor], *, bucket_bytes: int) -> None:
        self.parameters = list(parameters)
        sizes = [ParameterSize(p.dtype, p.numel(), p.element_size()) for p in self.parameters]
        self._buckets = [_Bucket(plan, self.parameters) for plan in plan_buckets(sizes, bucket_bytes=bucket_bytes)]
        self._place = _places(self._buckets)
        self._filled: set[int] = set()  # slots that hold a contribution to the exchange being prepared
        self._earlier: dict[int, torch.Tensor] = {}  # what `.grad` held before this exchange
        self._sparse: set[int] = set()  # parameters whose gradients autograd makes as sparse tensors
        self._launched = 0

    def set_aside(self, index: int) -> None:
        """Before autograd writes a gradient: keep what `.grad` holds, so that the new one comes alone."""
        parameter = self.parameters[index]
        if parameter.grad is None:
            return
        if index not in self._earlier:
            shares_slot = not parameter.grad.is_sparse and parameter.grad.data_ptr() == self._view(index).data_ptr()
            self._earlier[index] = parameter.grad.clone() if shares_slot else parameter.grad
        parameter.grad = None

    def add(self, index: int, scale: float) -> None:
        """Move the gradient that autograd just made into its slot, scaled. A scale of 0 adds nothing, not even nan."""
        parameter = self.parameters[index]
        gradient = parameter.grad
        parameter.grad = None
        if gradient is None:
            return
        gradient = gradient.detach()
        if gradient.is_sparse:
            self._sparse.add(index)
            gradient = gradient.to_dense()
        view = self._view(index)
        if scale == 0.0:
            if index not in self._filled:
                view.zero_()
        elif index in self._filled:
            view.add_(gradient, alpha=scale)
        else:
            torch.mul(gradient, scale, out=view)
        self._filled.add(index)

    def mark_ready(self, index: int) -> None:
        """This exchange will get no more from this parameter on this worker."""
        bucket, number = self._place[index]
        bucket.used[number] = 1.0
        bucket.missing -= 1

    def launch_ready(self, group: Group, label: str) -> None:
        """Start reducing every complete bucket, in the fixed order that all workers share."""
        while self._launched < len(self._buckets) and self._buckets[self._launched].missing <= 0:
            bucket = self._buckets[self._launched]
            bucket.flags.copy_(torch.tensor(bucket.used))
            bucket.pending = group.all_reduce(bucket.flat, label=f"{label}, gradients {self._launched}")
            self._launched += 1

    def fill_missing(self, marked: set[int]) -> None:
        """Parameters that no gradient reached in this exchange contribute zeros, or what earlier batches left."""
        for index in range(len(self.parameters)):
            if index in marked:
                continue
            self.set_aside(index)  # another worker may have a gradient for it, which is added to what it held
            if index in self._filled:
                self.mark_ready(index)
            else:
                self._view(index).zero_()
                self._place[index][0].missing -= 1

    def wait(self) -> None:
        """Return when every bucket is reduced; raise the first failure."""
        for bucket in self._buckets:
            if bucket.pending is not None:
                bucket.pending.wait()

    def publish(self, correction: float) -> None:
        """Give each parameter its reduced gradient. One that no worker used keeps what it had."""
        for bucket in self._buckets:
            if correction != 1.0:
                bucket.flat[: bucket.plan.flags_at].mul_(correction)
            used = (bucket.flags != 0).tolist()
            for slot, view, is_used in zip(bucket.plan.slots, bucket.views, used, strict=True):
                self._publish_one(slot.parameter, view, is_used)
        self.reset()

    def _publish_one(self, index: int, view: torch.Tensor, is_used: bool) -> None:
        parameter, earlier = self.parameters[index], self._earlier.get(index)
        if not is_used:
            if earlier is not None:
                parameter.grad = earlier
            return
        if index in self._sparse:
            gradient = view.to_sparse(1)
            parameter.grad = gradient if earlier is None else (gradient + earlier).coalesce()
            return
        if earlier is not None:
            view.add_(earlier)
        parameter.grad = view

    def discard(self) -> None:
        """A void exchange: gradients become zero, so that nothing the script does with them can go wrong."""
        self.renew()
        for bucket in self._buckets:
            for slot, view in zip(bucket.plan.slots, bucket.views, strict=True):
                self.parameters[slot.parameter].grad = view.to_sparse(1) if slot.parameter in self._sparse else view

    def renew(self) -> None:
        """Start over in new memory: operations of an exchange that was given up may still hold the old one."""
        self._buckets = [_Bucket(bucket.plan, self.parameters) for bucket in self._buckets]
        self._place = _places(self._buckets)
        self.reset()

    def reset(self) -> None:
        for bucket in self._buckets:
            bucket.clear()
        self._filled.clear()
        self._earlier.clear()
        self._launched = 0

    def _view(self, index: int) -> torch.Tensor:
        bucket, number = self._place[index]
        return bucket.views[number]


def _places(buckets: Sequence[_Bucket]) -> dict[int, tuple[_Bucket, int]]:
    """By parameter: its bucket and the number of its slot there."""
    return {slot.parameter: (bucket, number) for bucket in buckets for number, slot in enumerate(bucket.plan.slots)}


def _slot_view(flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The slot in the parameter's own memory layout where that is dense, so that optimizers run at full speed."""
    if not parameter.is_contiguous() and _is_dense(parameter):
        return flat.as_strided(parameter.size(), parameter.stride(), flat.storage_offset())
    return flat.view(parameter.shape)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
