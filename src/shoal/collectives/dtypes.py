"""Element types: their codes on the wire, and how two runs of elements are combined in place.

numpy does the adding where it has the type: it starts no threads of its own, while torch would start a second team of
them beside the one that computes gradients. Types that numpy lacks, or is slow at, are torch's, in pieces below its
threshold for threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from shoal.collectives.group import Reduction
from shoal.errors import UsageError

Combine = Callable[[memoryview, memoryview], None]  # (target, received): target becomes the reduction of both

# Numbers are never given to another type later.
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
    # These only travel: torch cannot add them on a CPU.
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
_NUMPY: dict[torch.dtype, np.dtype[np.generic]] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}
_TORCH = (torch.float16, torch.bfloat16, torch.complex32)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
SERIAL_ELEMENTS = 32767  # torch uses threads from 32768 elements on

# np.add of booleans is the logical or, as torch's is.
_NUMPY_FUNCTIONS: dict[Reduction, np.ufunc] = {
    Reduction.SUM: np.add,
    Reduction.MAX: np.maximum,
    Reduction.MIN: np.minimum,
    Reduction.PRODUCT: np.multiply,
    Reduction.AND: np.bitwise_and,
    Reduction.OR: np.bitwise_or,
    Reduction.XOR: np.bitwise_xor,
}
_TORCH_FUNCTIONS: dict[Reduction, Callable[..., torch.Tensor]] = {
    Reduction.SUM: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
    Reduction.PRODUCT: torch.mul,
}
_OF_BITS = (Reduction.AND, Reduction.OR, Reduction.XOR)


def code_of(dtype: torch.dtype) -> int:
    if dtype not in CODES:
        raise UsageError(f"tensors of {dtype} cannot be sent; convert them to another dtype first")
    return CODES[dtype]


def name_of(code: int) -> str:
    return _NAMES.get(code, f"unknown dtype {code}")


@lru_cache(maxsize=256)
def combine(dtype: torch.dtype, reduction: Reduction) -> Combine:
    """How to reduce elements of this type, or a UsageError where torch could not either."""
    if dtype in _COMPLEX and reduction not in (Reduction.SUM, Reduction.PRODUCT):
        raise UsageError(f"complex numbers have no {reduction.value}; reduce their real and imaginary parts")
    if reduction in _OF_BITS and dtype.is_floating_point:
        raise UsageError(f"{dtype} has no {reduction.value} of its bits; only whole numbers and booleans do")
    if dtype in _NUMPY:
        return _numpy_combine(_NUMPY[dtype], _NUMPY_FUNCTIONS[reduction])
    if dtype in _TORCH:
        return _torch_combine(dtype, _TORCH_FUNCTIONS[reduction])
    raise UsageError(f"torch cannot reduce {dtype} on a CPU; convert the tensor to another dtype first")


def _numpy_combine(kind: np.dtype[np.generic], function: np.ufunc) -> Combine:
    def into(target: memoryview, received: memoryview) -> None:
        place = np.frombuffer(target, kind)
        with np.errstate(all="ignore"):  # reducing infinities is the user's business, not a warning in an exchange
            function(place, np.frombuffer(received, kind), out=place)

    return into


def _torch_combine(dtype: torch.dtype, function: Callable[..., torch.Tensor]) -> Combine:
    def into(target: memoryview, received: memoryview) -> None:
        if not target.nbytes:
            return
        if received.readonly:  # a peer's shared memory: torch warns of tensors there
            received = memoryview(bytearray(received))
        places, more = torch.frombuffer(target, dtype=dtype), torch.frombuffer(received, dtype=dtype)
        for start in range(0, len(places), SERIAL_ELEMENTS):
            place = places[start : start + SERIAL_ELEMENTS]
            function(place, more[start : start + SERIAL_ELEMENTS], out=place)

    return into
