"""Sums that become means: divided as C divides, in every whole type and for any number of ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from shoal.collectives.mean import divide

WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@given(
    number=some.integers(-(2**63), 2**63 - 1), ranks=some.integers(2, 1000) | some.sampled_from([127, 128, 255, 256])
)
def test_quotients_are_cut_towards_zero(dtype: torch.dtype, number: int, ranks: int) -> None:
    limits = torch.iinfo(dtype)
    number = limits.min + (number - limits.min) % (limits.max - limits.min + 1)
    total = torch.tensor([number, limits.min, limits.max], dtype=dtype)
    expected = [abs(one) // ranks * (-1 if one < 0 else 1) for one in total.tolist()]
    divide([total], ranks)
    assert total.tolist() == expected
