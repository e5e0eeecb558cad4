"""The forms in which torch calls a process group: with options, with an operator or a root, or with neither.

Our methods take lists of tensors and an options object; these functions turn the short forms into that form. Calls
without options are asynchronous, as torch's are. Also here: our errors as torch's, since programs written for
torch.distributed catch `RuntimeError` and its subclasses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch.distributed import DistBackendError, DistError, ReduceOp

from shoal.collectives import texts
from shoal.errors import ShoalError, UsageError

Options = TypeVar("Options")
Given = ParamSpec("Given")
Result = TypeVar("Result")
Self = TypeVar("Self")


class WrongCall(DistError, ValueError):
    """A call that cannot work as given. The group goes on."""


def in_torch_terms(error: BaseException) -> BaseException:
    """The same text as torch's error: a `WrongCall` if the caller is to blame, else a `DistBackendError`."""
    if isinstance(error, UsageError):
        return WrongCall(str(error))
    if isinstance(error, ShoalError):
        return DistBackendError(str(error))
    return error


def in_torch_errors(
    method: Callable[Concatenate[Self, Given], Result],
) -> Callable[Concatenate[Self, Given], Result]:
    """Raise our errors as torch's."""

    @functools.wraps(method)
    def call(self: Self, /, *given: Given.args, **named: Given.kwargs) -> Result:
        try:
            return method(self, *given, **named)
        except ShoalError as error:
            raise in_torch_terms(error) from error

    return call


def as_list(tensors: torch.Tensor | list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def as_lists(tensors: list[torch.Tensor] | list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    return [tensors] if tensors and isinstance(tensors[0], torch.Tensor) else tensors  # type: ignore[return-value]  # told apart by the first


def options(given: Any, kind: type[Options], operator: Any = None) -> Options:
    """`given` is the options, a reduction operator, the rank of the root (with the operator after it), or nothing."""
    if isinstance(given, kind):
        return given
    made = kind()
    if isinstance(given, int):
        made.rootRank = given  # type: ignore[attr-defined]  # only kinds with a root are called so
        given = operator
    if isinstance(given, ReduceOp | ReduceOp.RedOpType):
        made.reduceOp = given  # type: ignore[attr-defined]  # only kinds with an operator are called so
    elif given is not None:
        raise WrongCall(texts.wrong_options(kind.__name__, given))
    return made
