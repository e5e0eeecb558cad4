"""Numbers whose bits tell how they were combined, and what combining them in a given order must give, bit for bit.

Written apart from the code under test: element by element where libraries leave bits to chance.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
import torch

from shoal.collectives.group import Reduction

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
DTYPES = (*WHOLE, *FLOATS, *COMPLEX)
PERIOD = 97  # elements after which a tensor repeats itself; a prime number, so that each meets every place of a vector

# Bytes of a number, bits of its mantissa.
_SHAPES = {torch.float16: (2, 10), torch.bfloat16: (2, 7), torch.float32: (4, 23), torch.float64: (8, 52)}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint64}


def reductions_of(dtype: torch.dtype) -> list[Reduction]:
    """Those that exchangers know: a mean is a sum that is divided."""
    if dtype.is_complex:
        return [Reduction.SUM, Reduction.PRODUCT]
    of_bits = () if not dtype.is_floating_point else (Reduction.AND, Reduction.OR, Reduction.XOR)
    return [each for each in Reduction if each not in (*of_bits, Reduction.MEAN)]


def special_bits(dtype: torch.dtype) -> list[int]:
    """Zeros, denormals, the largest numbers, infinities and NaNs with different payloads, quiet and signalling."""
    size, mantissa = _SHAPES[dtype]
    sign, least = 1 << (8 * size - 1), 1 << mantissa
    infinity = (sign - 1) & ~(least - 1)
    quiet = infinity | least >> 1
    one = 0x3C00 if dtype is torch.float16 else infinity >> 1 & ~(least - 1)
    found = [0, 1, least - 1, least, one, infinity - 1, infinity, quiet, quiet | 1, quiet | 5, infinity | 3]
    return [*found, *(sign | bits for bits in found)]


def tensor_of(dtype: torch.dtype, elements: int, seed: int, shift: int = 0) -> torch.Tensor:
    """`shift`: elements that lie before it in its memory."""
    random = np.random.default_rng(seed)
    if dtype in COMPLEX:
        parts = _tile(COMPLEX[dtype], random, 2 * PERIOD)
        tile = torch.frombuffer(bytearray(parts.tobytes()), dtype=dtype)
    elif dtype in FLOATS:
        tile = torch.frombuffer(bytearray(_tile(dtype, random, PERIOD).tobytes()), dtype=dtype)
    elif dtype is torch.bool:
        tile = torch.from_numpy(random.integers(0, 2, PERIOD).astype(bool))
    else:
        limits = torch.iinfo(dtype)
        numbers = random.integers(limits.min, limits.max, PERIOD, endpoint=True, dtype=np.int64)
        numbers[::7], numbers[1::7] = limits.max, limits.min
        tile = torch.from_numpy(numbers).to(dtype)
    item = dtype.itemsize  # moved as bytes: torch warns of most that is done with halves of complex numbers
    whole = torch.empty((shift + elements) * item, dtype=torch.uint8)
    whole[shift * item :] = tile.view(torch.uint8).repeat(-(-elements // PERIOD))[: elements * item]
    return whole[shift * item :].view(dtype)


def _tile(dtype: torch.dtype, random: np.random.Generator, count: int) -> np.ndarray:
    kind = _UNSIGNED[_SHAPES[dtype][0]]
    specials = random.choice(np.array(special_bits(dtype), dtype=kind), count)
    ordinary = torch.from_numpy(random.normal(size=count) * 10.0 ** random.integers(-3, 3, count)).to(dtype)
    bits = np.frombuffer(bytearray(ordinary.view(torch.uint8).numpy().tobytes()), kind)
    return np.where(random.random(count) < 0.7, specials, bits)


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """As whole numbers, so that NaNs are compared too."""
    flat = tensor.contiguous().view(-1)
    return np.frombuffer(flat.view(torch.uint8).numpy().tobytes(), np.uint8).reshape(len(flat), tensor.dtype.itemsize)


def combined(dtype: torch.dtype, reduction: Reduction, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Every element from its two numbers alone. `x` is the first operand. Not for products of complex numbers."""
    if dtype in COMPLEX:
        real = COMPLEX[dtype]
        return combined(real, reduction, x.view(real), y.view(real)).view(dtype)
    length = len(x)
    if length > 2 * PERIOD:
        return combined(dtype, reduction, x[: 2 * PERIOD], y[: 2 * PERIOD]).repeat(-(-length // (2 * PERIOD)))[:length]
    if dtype not in FLOATS:
        return _WHOLE_FUNCTIONS[reduction](x, y)
    kind = _UNSIGNED[dtype.itemsize]
    pairs = zip(_numbers(x, kind), _numbers(y, kind), strict=True)
    found = np.array([_COMBINED[reduction](dtype, p, q) for p, q in pairs], dtype=kind)
    return torch.frombuffer(bytearray(found.tobytes()), dtype=dtype) if length else x.clone()


def folded(dtype: torch.dtype, reduction: Reduction, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """In the order in which they are given."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = combined(dtype, reduction, total, tensor)
    return total


_WHOLE_FUNCTIONS: dict[Reduction, Callable[..., torch.Tensor]] = {
    Reduction.SUM: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
    Reduction.PRODUCT: torch.mul,
    Reduction.AND: torch.bitwise_and,
    Reduction.OR: torch.bitwise_or,
    Reduction.XOR: torch.bitwise_xor,
}


def _numbers(tensor: torch.Tensor, kind: type[np.unsignedinteger]) -> list[int]:
    return [int(bits) for bits in np.frombuffer(tensor.contiguous().view(torch.uint8).numpy().tobytes(), kind)]


def _infinity(dtype: torch.dtype) -> int:
    size, mantissa = _SHAPES[dtype]
    return ((1 << (8 * size - 1)) - 1) & ~((1 << mantissa) - 1)


def _is_nan(dtype: torch.dtype, bits: int) -> bool:
    return bits & ((1 << (8 * _SHAPES[dtype][0] - 1)) - 1) > _infinity(dtype)


def _quiet(dtype: torch.dtype, bits: int) -> int:
    if dtype is torch.bfloat16:
        return 0x7FC0
    return bits | 1 << (_SHAPES[dtype][1] - 1)


def _computed(function: Callable[[float, float], float]) -> Callable[[torch.dtype, int, int], int]:
    def compute(dtype: torch.dtype, p: int, q: int) -> int:
        for bits in (p, q):
            if _is_nan(dtype, bits):
                return _quiet(dtype, bits)
        size = dtype.itemsize
        x, y = (torch.frombuffer(bytearray(each.to_bytes(size, "little")), dtype=dtype).double() for each in (p, q))
        # Exact in float64 for the shorter types, so that rounding once more is rounding once.
        exact = function(x, y) if dtype is torch.float64 else function(x, y).to(dtype)
        found = int.from_bytes(exact.view(torch.uint8).numpy().tobytes(), "little")
        if dtype is torch.bfloat16 and _is_nan(dtype, found):
            return 0x7FC0
        return found | 1 << (8 * size - 1) if _is_nan(dtype, found) else found  # the sign that x86 gives to its own

    return compute


def _extreme(is_further: Callable[[float, float], bool], signed_zero: int) -> Callable[[torch.dtype, int, int], int]:
    def choose(dtype: torch.dtype, p: int, q: int) -> int:
        for bits in (p, q):
            if _is_nan(dtype, bits):
                return bits
        x, y = _value(dtype, p), _value(dtype, q)
        if x == 0 == y:
            zeros = {bits >> (8 * dtype.itemsize - 1): bits for bits in (p, q)}
            return zeros.get(signed_zero, p)
        return q if is_further(y, x) else p

    return choose


def _value(dtype: torch.dtype, bits: int) -> float:
    if dtype is torch.bfloat16:
        return float(struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0])
    letter = {torch.float16: "e", torch.float32: "f", torch.float64: "d"}[dtype]
    return float(struct.unpack(f"<{letter}", bits.to_bytes(dtype.itemsize, "little"))[0])


_COMBINED: dict[Reduction, Callable[[torch.dtype, int, int], int]] = {
    Reduction.SUM: _computed(lambda x, y: x + y),
    Reduction.PRODUCT: _computed(lambda x, y: x * y),
    Reduction.MAX: _extreme(lambda y, x: y > x, 0),
    Reduction.MIN: _extreme(lambda y, x: y < x, 1),
}
