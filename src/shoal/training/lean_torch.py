"""Keeps torch from importing its compiler where a script does not use it: a second of processor time per worker.

Optimizers import `torch._dynamo`, 800 modules, when the first one is made and when it takes its first step, to mark
places that must not be compiled. While that package is not imported nothing can be compiled, so there is nothing to
mark; once something has imported it, torch's own code runs. This module relies on how torch 2.13 is built, and leaves
alone what is built otherwise.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

COMPILER = "torch._dynamo"
CACHE = "__dynamo_disable"  # where torch's decorator of uncompiled functions looks for what to call
STEP = "_use_grad"  # name of the function that torch puts around every optimizer's step


def spare_compiler() -> None:
    """Keep all of torch's optimizers in this process from importing the compiler."""
    if COMPILER in sys.modules:
        return
    for method in vars(torch.optim.Optimizer).values():
        plain = getattr(method, "__wrapped__", None)
        if getattr(getattr(method, "__code__", None), "co_name", "") == "inner" and plain is not None:
            setattr(plain, CACHE, _unmarked(plain))
    for kind in vars(torch.optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) else None
        if getattr(getattr(step, "__code__", None), "co_name", "") == STEP and hasattr(step, "__wrapped__"):
            kind.step = _light(step)


def _unmarked(plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if COMPILER in sys.modules:
            setattr(plain, CACHE, sys.modules[COMPILER].disable(plain, wrapping=False))
            return getattr(plain, CACHE)(*arguments, **named)
        return plain(*arguments, **named)

    return call


def _light(step: Any) -> Callable[..., Any]:
    """torch's own step, without its marks for the compiler."""
    plain: Callable[..., Any] = step.__wrapped__

    @functools.wraps(plain)
    def light_step(*arguments: Any, **named: Any) -> Any:
        if COMPILER in sys.modules:
            return step(*arguments, **named)
        was_enabled = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(arguments[0].defaults["differentiable"])
            return plain(*arguments, **named)
        finally:
            torch.set_grad_enabled(was_enabled)

    return light_step
