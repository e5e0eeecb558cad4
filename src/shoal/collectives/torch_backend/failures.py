"""Our errors in torch's terms: programs written for torch.distributed catch `RuntimeError` and its kin."""

from __future__ import annotations

from torch.distributed import DistBackendError, DistError

from shoal.errors import ShoalError, UsageError


class WrongCall(DistError, ValueError):
    """A call that cannot work as given. The group goes on."""


def in_torch_terms(error: BaseException) -> BaseException:
    """The same words. What the caller did wrong is a `WrongCall`; what happened to the group a `DistBackendError`."""
    if isinstance(error, UsageError):
        return WrongCall(str(error))
    if isinstance(error, ShoalError):
        return DistBackendError(str(error))
    return error
