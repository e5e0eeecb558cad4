"""BatchNorm over all workers' samples: the same statistics and gradients as one worker with the whole batch.

torch's own SyncBatchNorm refuses CPU tensors and needs a process group. Sums travel in double precision. The stand-in
of a worker without samples does not count. Losses are means over a worker's own samples and gradients are weighted by
samples later, so the backward pass weights each worker's part the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.errors import UsageError
from shoal.training import texts

Reduce = Callable[[torch.Tensor, str], torch.Tensor]  # sum over all workers; the worker's own value where that fails


class Statistics:
    """What the layers need to know about the batch at hand, and how they reach their peers."""

    def __init__(self, reduce: Reduce, share: Callable[[], float]) -> None:
        self.reduce = reduce
        self.share = share  # this worker's part of the step's samples, 0 for a stand-in

    def __deepcopy__(self, memo: dict[int, Any]) -> Statistics:
        """A copy of a model, an average of it for example, belongs to the same job."""
        return self


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, layer: SyncBatchNorm
    ) -> torch.Tensor:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        statistics = layer.statistics
        counts = statistics.share() > 0.0
        wide = x.detach().double()
        count = wide.new_full((1,), float(x.numel() // x.shape[1]) if counts else 0.0)
        own = torch.cat([wide.sum(axes), count]) if counts else wide.new_zeros(x.shape[1] + 1)
        total = statistics.reduce(own, "batch mean")
        n = total[-1].clamp(min=1.0)
        mean = total[:-1] / n
        centred = wide - _along(mean, x)
        own = centred.square().sum(axes) if counts else torch.zeros_like(mean)
        variance = statistics.reduce(own, "batch variance") / n
        layer.update(mean, variance, float(n))
        inverse = (variance + layer.eps).rsqrt()
        normal = centred * _along(inverse, x)
        ctx.save_for_backward(normal, inverse, weight)
        ctx.statistics, ctx.count, ctx.has_bias, ctx.dtype = statistics, float(n), bias is not None, x.dtype
        result = normal if weight is None else normal * _along(weight.detach().double(), x)
        return (result if bias is None else result + _along(bias.detach().double(), x)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UsageError(texts.NO_SECOND_DERIVATIVES)
        normal, inverse, weight = ctx.saved_tensors
        gradient = gradients[0].double()
        axes = [axis for axis in range(gradient.dim()) if axis != 1]
        share = ctx.statistics.share()
        own_bias, own_weight = gradient.sum(axes), (gradient * normal).sum(axes)
        both = torch.cat([own_bias, own_weight])
        sums = both * share if share else torch.zeros_like(both)
        mean_bias, mean_weight = (ctx.statistics.reduce(sums, "batch gradient") / ctx.count).chunk(2)
        scale = inverse if weight is None else inverse * weight.detach().double()
        if share:
            # The sums hold every worker's gradient times its share; this worker's result is divided by its own share,
            # since the exchange will multiply by it.
            others = (_along(mean_bias, gradient) + normal * _along(mean_weight, gradient)) / share
            result = (gradient - others) * _along(scale, gradient)
        else:
            result = torch.zeros_like(gradient)
        return (
            result.to(ctx.dtype),
            None if weight is None else own_weight.to(weight.dtype),
            own_bias.to(ctx.dtype if weight is None else weight.dtype) if ctx.has_bias else None,
            None,
        )


def _along(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A per-channel vector in a shape that broadcasts over x."""
    return vector.view(1, -1, *([1] * (x.dim() - 2)))


class SyncBatchNorm(_BatchNorm):
    """A BatchNorm layer whose training statistics are those of all workers' samples."""

    statistics: Statistics

    def __getstate__(self) -> dict[str, Any]:
        """A saved layer belongs to no job."""
        return {name: value for name, value in self.__dict__.items() if name != "statistics"}

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(texts.too_flat(input.dim()))

    def update(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        """Update running statistics as torch does, with the unbiased variance."""
        if self.running_mean is None or self.running_var is None or not self.track_running_stats:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(count - 1.0, 1.0))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not (self.training or self.running_mean is None):
            return super().forward(input)
        normalize: Callable[..., torch.Tensor] = _Normalize.apply
        return normalize(input, self.weight, self.bias, self)


def convert(module: nn.Module, statistics: Statistics, done: dict[int, nn.Module] | None = None) -> nn.Module:
    """Replace every BatchNorm layer by one that sees all workers' samples; its tensors stay the same objects."""
    done = {} if done is None else done  # a layer that is in two places is replaced by one layer in both
    if id(module) in done:
        return done[id(module)]
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        layer = SyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        layer.weight, layer.bias = module.weight, module.bias
        layer.running_mean, layer.running_var = module.running_mean, module.running_var
        layer.num_batches_tracked = module.num_batches_tracked
        layer.training = module.training
        layer.statistics = statistics
        done[id(module)] = layer
        return layer
    done[id(module)] = module
    for name, child in module._modules.items():
        if child is not None:
            module._modules[name] = convert(child, statistics, done)
    return module
