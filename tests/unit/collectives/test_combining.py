"""Two runs of elements combined: every bit is decided, in C and without it, wherever an element lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.codecs.identity import memory_of
from shoal.collectives.combining import combine, combine_without_native
from shoal.collectives.dtypes import CODES
from shoal.collectives.group import Reduction
from shoal.errors import UsageError
from support.bits import COMPLEX, DTYPES, bits_of, combined, reductions_of, tensor_of

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
LENGTHS = [*range(1, 20), 31, 32, 33, 65, 97, 130, 1001]
KINDS = [(dtype, reduction) for dtype in DTYPES for reduction in reductions_of(dtype)]
NAMES = [f"{str(dtype).removeprefix('torch.')}-{reduction.value}" for dtype, reduction in KINDS]


@pytest.mark.parametrize(("dtype", "reduction"), KINDS, ids=NAMES)
def test_every_bit_is_that_of_the_two_operands_alone(dtype: torch.dtype, reduction: Reduction) -> None:
    """With and without the C extension; for every length, shift in memory, and place of the result."""
    real = COMPLEX.get(dtype, dtype) if reduction is Reduction.SUM else dtype
    ways = [combine(dtype, reduction), combine_without_native(real, reduction)]
    for number, length in enumerate(LENGTHS):
        shift = number % 5
        x, y = tensor_of(dtype, length, 2 * number, shift), tensor_of(dtype, length, 2 * number + 1, number % 3)
        is_defined = not (dtype.is_complex and reduction is Reduction.PRODUCT)
        expected = combined(dtype, reduction, x, y) if is_defined else None
        for way in ways:
            for out in ("x", "y", "apart"):
                operands = {"x": x.clone(), "y": y.clone(), "apart": x.clone()}
                way(*(memory_of(operands[name]) for name in (out, "x", "y")))
                if expected is not None:
                    assert np.array_equal(bits_of(operands[out]), bits_of(expected)), (length, shift, out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.MAX, Reduction.MIN], ids=lambda each: each.value)
def test_every_number_of_16_bits_is_combined_alike_in_vectors_and_by_itself(
    dtype: torch.dtype, reduction: Reduction
) -> None:
    """Longer runs go through vectors and the processor's own conversions, the last elements do not."""
    everything = np.arange(65536, dtype=np.uint16)
    x, y = (memoryview(np.random.default_rng(seed).permutation(everything)).cast("B") for seed in (1, 2))
    whole, pieces, without = (memoryview(bytearray(x.nbytes)) for _ in range(3))
    combine(dtype, reduction)(whole, x, y)
    combine_without_native(dtype, reduction)(without, x, y)
    for start in range(0, x.nbytes, 14):
        part = slice(start, start + 14)
        combine(dtype, reduction)(pieces[part], x[part], y[part])
    assert whole == pieces == without


def test_operands_that_cannot_be_written_are_read() -> None:
    for dtype in DTYPES:
        x, y = tensor_of(dtype, 40, 1), tensor_of(dtype, 40, 2)
        total = memory_of(x.clone())
        combine(dtype, Reduction.SUM)(total, total, memory_of(y).toreadonly())
        assert total.tobytes() == bits_of(combined(dtype, Reduction.SUM, x, y)).tobytes()


@pytest.mark.parametrize("is_native", [True, False])
def test_denormals_count_in_a_thread_that_was_told_to_flush_them(is_native: bool) -> None:
    x = torch.tensor([1e-40, -1e-40, 1.0], dtype=torch.float32)
    expected = bits_of(combined(torch.float32, Reduction.SUM, x, x))
    total = x.clone()
    torch.set_flush_denormal(True)
    try:
        way = (combine if is_native else combine_without_native)(torch.float32, Reduction.SUM)
        way(memory_of(total), memory_of(x), memory_of(x))
        is_still_flushed = float(torch.tensor(1e-40) * 1.0) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(bits_of(total), expected)
    assert is_still_flushed


def test_what_torch_cannot_reduce_is_refused() -> None:
    for dtype in CODES:
        for reduction in (each for each in Reduction if each is not Reduction.MEAN):  # a sum that is divided
            if dtype in DTYPES and reduction in reductions_of(dtype):
                combine(dtype, reduction)
            else:
                with pytest.raises(UsageError):
                    combine(dtype, reduction)
