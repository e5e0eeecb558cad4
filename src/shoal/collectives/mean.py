"""The mean of numbers that cannot be scaled before they are added: whole numbers, and complex ones, which no exchanger
scales.

As in NCCL, numbers are added in their own type, in which too large a sum wraps around, and the sum is divided by the
number of ranks. Whole quotients are rounded towards zero. Every rank divides the same sum, so all ranks get the same
bits, whichever exchanger made the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from shoal.collectives import texts
from shoal.collectives.combining import with_denormals
from shoal.collectives.group import Reduction
from shoal.errors import UsageError

WIDER = torch.int64  # holds every number of ranks


def as_sum(reduction: Reduction, label: str, dtype: torch.dtype) -> tuple[Reduction, str]:
    """The reduction that exchangers run for a mean, with a label that differs from a sum's. Others stay as they are."""
    if reduction is not Reduction.MEAN:
        return reduction, label
    if dtype.is_floating_point or dtype is torch.bool:
        raise UsageError(texts.no_mean(label, dtype))
    return Reduction.SUM, f"mean of {label}"


def divide(sums: Iterable[torch.Tensor], ranks: int) -> None:
    """Turn the sums into means, in place."""
    for total in sums:
        if total.is_complex():
            with_denormals(partial(torch.view_as_real(total).div_, ranks))  # ranks divide in threads of their own
        elif ranks > torch.iinfo(total.dtype).max:  # torch would convert the divisor to that type
            total.copy_(total.to(WIDER).div_(ranks, rounding_mode="trunc"))
        else:
            total.div_(ranks, rounding_mode="trunc")
