"""What ranks that share memory say about an operation is the header that they would send over a network."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as some

from shoal.collectives.agreement import reduction_code
from shoal.collectives.dtypes import CODES, code_of
from shoal.collectives.exchanger import Operation
from shoal.collectives.group import Reduction
from shoal.collectives.memory.memory_loops import statement_of
from shoal.wire.frames import FrameKind, cut_label, unpack

REDUCTIONS = [each for each in Reduction if each is not Reduction.MEAN]  # for which exchangers are asked for a sum
DTYPES = some.sampled_from(sorted(CODES, key=str))


@given(
    some.sampled_from(list(FrameKind)),
    some.none() | some.sampled_from(REDUCTIONS),
    DTYPES,
    some.text(max_size=80),
    some.tuples(some.integers(0, 2**31), some.integers(0, 2**40), some.integers(0, 255), some.integers(0, 2**40)),
)
def test_a_statement_can_be_read_as_a_header(
    kind: FrameKind, reduction: Reduction | None, dtype: torch.dtype, label: str, counts: tuple[int, int, int, int]
) -> None:
    generation, sequence, source, elements = counts
    operation = Operation(kind, sequence, cut_label(label), dtype, elements, reduction)
    header = unpack(statement_of(operation, generation, source), generation=generation)
    assert (header.kind, header.reduction, header.dtype) == (kind, reduction_code(reduction), code_of(dtype))
    assert (header.sequence, header.transfer, header.elements) == (sequence, source, elements)
    assert header.label == cut_label(label)
