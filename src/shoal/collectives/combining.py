"""How two runs of elements are combined, with every bit of the result decided here.

The first operand is the lower rank's. Of two NaNs the first one stays (a sum makes it quiet), +0 is greater than -0,
and a maximum or minimum is one of its operands, bit for bit; a sum of bfloat16 has torch's own NaN. In libraries these
cases depend on vector loops: numpy's sum of two NaNs is the first one, but the second one in an array of one element;
torch's maximum of NaN depends on whether it is among the last elements.

The C extension has loops for some types. numpy adds others that it has: it starts no threads, while torch would start a
second team of threads beside the one that computes gradients. torch adds types that numpy lacks, or is slow at, in
pieces below its threshold for threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import numpy as np
import torch

from shoal.collectives import texts
from shoal.collectives.agreement import reduction_code
from shoal.collectives.dtypes import NATIVE, code_of
from shoal.collectives.group import Reduction
from shoal.errors import UsageError
from shoal.transport.native import native

# (out, x, y): out becomes x and y combined; out may be x or y, or separate memory.
Combine = Callable[[memoryview, memoryview, memoryview], None]

SERIAL_ELEMENTS = 32767  # torch uses threads from 32768 elements on
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
REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}

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
    Reduction.PRODUCT: torch.mul,
}
_OF_BITS = (Reduction.AND, Reduction.OR, Reduction.XOR)
_OF_ORDER = (Reduction.MAX, Reduction.MIN)


@dataclass(frozen=True)
class _Bits:
    """The bit patterns of a floating point type, as integers of the same size."""

    signed: np.dtype[np.signedinteger]
    unsigned: np.dtype[np.unsignedinteger]
    infinity: int
    quiet: int  # the bit that makes a NaN quiet
    floating: np.dtype[np.floating] | None = None  # numpy's own type, where it is fast

    @property
    def magnitude(self) -> int:
        """All bits but the sign."""
        return int(np.iinfo(self.signed).max)

    def has_nan(self, numbers: np.ndarray) -> bool:
        """Faster than a mask of all NaNs, which hardly ever occur."""
        if self.floating is not None:
            most = numbers.view(self.floating).max()
            return bool(most != most)  # noqa: PLR0124  only NaN differs from itself
        sign = self.magnitude + 1
        return bool(numbers.max() > self.infinity or numbers.view(self.unsigned).max() > sign + self.infinity)

    def nans(self, numbers: np.ndarray) -> np.ndarray:
        return (numbers & self.magnitude) > self.infinity

    def ordered(self, numbers: np.ndarray) -> np.ndarray:
        """Whole numbers in the order of the floating point numbers, -0 before +0."""
        turned: np.ndarray = numbers ^ ((numbers >> (8 * self.signed.itemsize - 1)) & self.magnitude)
        return turned


_BITS = {
    torch.float16: _Bits(np.dtype(np.int16), np.dtype(np.uint16), 0x7C00, 0x0200),
    torch.bfloat16: _Bits(np.dtype(np.int16), np.dtype(np.uint16), 0x7F80, 0x0040),
    torch.float32: _Bits(np.dtype(np.int32), np.dtype(np.uint32), 0x7F80_0000, 0x0040_0000, np.dtype(np.float32)),
    torch.float64: _Bits(np.dtype(np.int64), np.dtype(np.uint64), 0x7FF0 << 48, 0x0008 << 48, np.dtype(np.float64)),
}
_SMALLEST, _ONE = 5e-324, 1.0


@lru_cache(maxsize=256)
def has_loop(dtype: torch.dtype, reduction: Reduction) -> bool:
    """Whether the C extension, if it was built, has a loop for this."""
    return dtype in NATIVE and reduction in (Reduction.SUM, *_OF_ORDER)


@lru_cache(maxsize=256)
def combine(dtype: torch.dtype, reduction: Reduction) -> Combine:
    """How to reduce elements of this type. Raises UsageError where torch could not do it either."""
    if dtype.is_complex and reduction not in (Reduction.SUM, Reduction.PRODUCT):
        raise UsageError(texts.no_order(reduction.value))
    if reduction in _OF_BITS and dtype.is_floating_point:
        raise UsageError(texts.no_bits(dtype, reduction.value))
    if dtype not in _NUMPY and dtype not in _TORCH:
        raise UsageError(texts.cannot_reduce(dtype))
    if dtype.is_complex and reduction is Reduction.SUM:
        return combine(REAL[dtype], reduction)
    if native is not None and has_loop(dtype, reduction):
        return _native_combine(native, code_of(dtype), int(reduction_code(reduction)))
    return combine_without_native(dtype, reduction)


@lru_cache(maxsize=256)
def combine_without_native(dtype: torch.dtype, reduction: Reduction) -> Combine:
    """The same as `combine`, with the same bits, for types and reductions that `combine` accepts."""
    if dtype in _BITS and reduction in _OF_ORDER:
        return _extreme(_BITS[dtype], reduction)
    if dtype in _NUMPY:
        function = _numpy_combine(_NUMPY[dtype], _NUMPY_FUNCTIONS[reduction])
    else:
        function = _torch_combine(dtype, _TORCH_FUNCTIONS[reduction])
    if dtype is torch.bfloat16:
        function = _one_nan(function)
    elif dtype in _BITS:
        function = _first_nan(_BITS[dtype], function)
    return _plain(function) if dtype.is_floating_point or dtype.is_complex else function


def unify_nans(dtype: torch.dtype, run: memoryview) -> None:
    """Replace every NaN by torch's own, in elements of a floating point type."""
    bits = _BITS[dtype]
    found = np.frombuffer(run, bits.signed)
    if found.size and bits.has_nan(found):
        found[bits.nans(found)] = bits.infinity | bits.quiet


def _native_combine(extension: ModuleType, dtype: int, reduction: int) -> Combine:
    reduce = extension.reduce

    def into(out: memoryview, x: memoryview, y: memoryview) -> None:
        reduce(out, x, y, dtype, reduction)

    return into


def _numpy_combine(kind: np.dtype[np.generic], function: np.ufunc) -> Combine:
    def into(out: memoryview, x: memoryview, y: memoryview) -> None:
        with np.errstate(all="ignore"):  # reducing infinities is the user's business, not a warning in an exchange
            function(np.frombuffer(x, kind), np.frombuffer(y, kind), out=np.frombuffer(out, kind))

    return into


def _torch_combine(dtype: torch.dtype, function: Callable[..., torch.Tensor]) -> Combine:
    def into(out: memoryview, x: memoryview, y: memoryview) -> None:
        if not out.nbytes:
            return
        target, first, second = (torch.frombuffer(_writable(run), dtype=dtype) for run in (out, x, y))
        for start in range(0, len(target), SERIAL_ELEMENTS):
            part = slice(start, start + SERIAL_ELEMENTS)
            function(first[part], second[part], out=target[part])

    return into


def _writable(run: memoryview) -> memoryview:
    """A copy of read-only memory, such as a peer's: torch warns about tensors in it."""
    return memoryview(bytearray(run)) if run.readonly else run


def _first_nan(bits: _Bits, function: Combine) -> Combine:
    """The function, with the first operand's NaNs kept."""

    def into(out: memoryview, x: memoryview, y: memoryview) -> None:
        first = np.frombuffer(x, bits.signed)
        if not first.size or not bits.has_nan(first):
            function(out, x, y)
            return
        places = np.flatnonzero(bits.nans(first))
        kept = first[places] | bits.signed.type(bits.quiet)
        function(out, x, y)
        np.frombuffer(out, bits.signed)[places] = kept

    return into


def _one_nan(function: Combine) -> Combine:
    """The function for bfloat16, with torch's own NaN in place of every other."""

    def into(out: memoryview, x: memoryview, y: memoryview) -> None:
        function(out, x, y)
        unify_nans(torch.bfloat16, out)

    return into


def _extreme(bits: _Bits, reduction: Reduction) -> Combine:
    is_further = np.greater if reduction is Reduction.MAX else np.less

    def into(out: memoryview, x: memoryview, y: memoryview) -> None:
        first, second = np.frombuffer(x, bits.signed), np.frombuffer(y, bits.signed)
        is_second = is_further(bits.ordered(second), bits.ordered(first))
        is_second |= bits.nans(second)
        is_second &= ~bits.nans(first)
        np.frombuffer(out, bits.signed)[:] = np.where(is_second, second, first)

    return into


def _plain(function: Combine) -> Combine:
    """The function with denormals, even in a thread that flushes them to zero (torch.set_flush_denormal): which thread
    combines depends on timing and differs between ranks."""

    def into(out: memoryview, x: memoryview, y: memoryview) -> None:
        if _SMALLEST * _ONE:
            function(out, x, y)
        else:
            with_denormals(lambda: function(out, x, y))

    return into


def with_denormals(call: Callable[[], object]) -> None:
    """Call it in this thread with denormals, even if the thread flushes them to zero."""
    is_flushing = _SMALLEST * _ONE == 0.0
    if is_flushing:
        torch.set_flush_denormal(False)
    try:
        call()
    finally:
        if is_flushing:
            torch.set_flush_denormal(True)
