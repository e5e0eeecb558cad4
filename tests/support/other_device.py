"""A device that is not the CPU, for machines without one: what code for GPUs does with tensors, without a GPU.

A tensor `There` has its values in an ordinary tensor that nothing else can reach. As on a GPU, an operation on tensors
of both kinds raises, and values come here by a copy, or where a number is asked for; each time counts as a wait. Copies
that the caller does not wait for (`non_blocking`) are refused, so whatever works here needs no order between streams
beyond that of the calls. What it does not show: streams, pinned memory, speed, autograd's threads for devices.

torch is told that tensors are on `meta`, the one device that every build has. `entered` makes torch's own functions put
tensors there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
COPIES = (aten.copy_.default, aten._to_copy.default)
READS = (aten._local_scalar_dense.default, aten.equal.default)
DEVICE = torch.device("meta")


class Count:
    """Since it was set to 0."""

    waits = 0  # of the host for the device


class There(torch.Tensor):
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> There:
        with torch.inference_mode(False):
            made: There = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=DEVICE,
            )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_meta = property(lambda _: False)  # it has values

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes its contents
        return f"There({self.inner})"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if function not in COPIES and any(not isinstance(one, There) and one.dim() for one in given):
            raise RuntimeError(f"{function}: expected all tensors to be on the same device")
        return _called(function, args, dict(kwargs or {}), given)


def _called(function: Any, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]) -> Any:
    if kwargs.get("non_blocking") or (function is aten.copy_.default and len(args) > 2 and args[2]):
        raise RuntimeError(f"{function}: a copy that nobody waits for")
    comes_here = "device" in kwargs and torch.device(kwargs["device"]).type == "cpu"
    is_down = function is aten.copy_.default and not isinstance(args[0], There)
    Count.waits += comes_here or is_down or function in READS
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    with torch.inference_mode(False), torch.no_grad():
        found = function(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    known = {id(one.inner): one for one in given if isinstance(one, There)} | {
        id(one): one for one in given if not isinstance(one, There)
    }

    def outer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or comes_here:
            return value
        return known[id(value)] if id(value) in known else There(value)

    return tree_map(outer, found)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, There) else value


class _Making(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is None or torch.device(kwargs["device"]).type != DEVICE.type:
            return function(*args, **kwargs)
        kwargs["device"] = torch.device("cpu")
        return There(function(*tree_map(_inner, args), **kwargs).clone())


@contextmanager
def entered() -> Iterator[None]:
    """Inside, and in this thread, what is made on the device or moved to it has values."""
    with _Making():
        yield


def moved(model: nn.Module) -> nn.Module:
    """As `model.to(device)`."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(There(parameter.data))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = There(buffer)
    return model
