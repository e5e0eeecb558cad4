"""Element types and their codes on the wire. Not here: how elements are combined (`combining`)."""

from __future__ import annotations

import torch

from shoal.collectives import texts
from shoal.errors import UsageError
from shoal.transport.native_layout import ELEMENTS

# A number never changes its type: it is part of the protocol.
CODES: dict[torch.dtype, int] = {
    torch.bool: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int16: 4,
    torch.int32: 5,
    torch.int64: 6,
    torch.float16: 7,
    torch.bfloat16: 8,
    torch.float32: 9,
    torch.float64: 10,
    torch.complex32: 11,
    torch.complex64: 12,
    torch.complex128: 13,
    # These can be sent but not reduced: torch cannot add them on a CPU.
    torch.uint16: 14,
    torch.uint32: 15,
    torch.uint64: 16,
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
    torch.float8_e8m0fnu: 21,
}
_NAMES = {code: str(dtype).removeprefix("torch.") for dtype, code in CODES.items()}
# Types that the C extension has loops for.
NATIVE = tuple(getattr(torch, name) for name in ELEMENTS)
assert [CODES[dtype] for dtype in NATIVE] == list(ELEMENTS.values()), "the C extension knows types by other codes"


def code_of(dtype: torch.dtype) -> int:
    if dtype not in CODES:
        raise UsageError(texts.cannot_send(dtype))
    return CODES[dtype]


def name_of(code: int) -> str:
    return _NAMES.get(code, f"unknown dtype {code}")
