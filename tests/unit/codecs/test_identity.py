"""The identity codec keeps every bit of every dtype and shares the tensor's memory."""

from __future__ import annotations

import pytest
import torch

from shoal.codecs.codec import Key, Leg
from shoal.codecs.identity import Identity
from shoal.collectives.dtypes import CODES
from shoal.errors import WireError

KEY = Key("gradients", Leg.PART)


@pytest.mark.parametrize("dtype", [dtype for dtype in CODES if dtype is not torch.complex32], ids=str)
@pytest.mark.parametrize("elements", [0, 1, 7, 1000])
def test_bits_survive(dtype: torch.dtype, elements: int) -> None:
    codec = Identity()
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (elements * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype)
    data = codec.encode(KEY, tensor)
    assert len(data) == codec.most_bytes(elements, dtype)
    arrived = torch.zeros_like(raw).view(dtype)
    codec.decode(KEY, memoryview(bytes(data)), arrived)
    assert torch.equal(arrived.view(torch.uint8), raw)


def test_encoding_copies_nothing() -> None:
    tensor = torch.zeros(4)
    data = Identity().encode(KEY, tensor)
    tensor[0] = 1.0
    assert bytes(data[:4]) == b"\x00\x00\x80\x3f"


def test_bytes_of_another_length_are_refused() -> None:
    with pytest.raises(WireError, match="15 bytes arrived for a tensor of 16"):
        Identity().decode(KEY, memoryview(bytes(15)), torch.zeros(4))
