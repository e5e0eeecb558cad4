"""The loops in C, called with what Python's code never gives them: refused, and nothing is touched."""

from __future__ import annotations

import pytest
import torch

from shoal.collectives.agreement import reduction_code
from shoal.collectives.combining import has_loop
from shoal.collectives.dtypes import CODES
from shoal.collectives.exchanger import Operation
from shoal.collectives.group import Reduction
from shoal.collectives.memory.memory_loops import statement_of
from shoal.transport.memory.team import Team
from shoal.wire.frames import FrameKind
from support.children import in_child
from support.memory_groups import teams

native = pytest.importorskip("shoal._native")
UNSCALED = [
    *((dtype, number) for dtype in (torch.int32, torch.int64, torch.float16, torch.bfloat16) for number in (1, 2, 3)),
    *((torch.float32, number) for number in (2, 3)),
]
SETTINGS = (1, 0.0, True, False, 128 * 1024, 64 * 1024, 32 * 1024, 5.0, 0.0)


def handle_of(team: Team) -> object:
    return native.team(team.rank, team.addresses, team.processes, team.pidfds, SETTINGS)


def test_what_has_no_loop_is_not_reduced() -> None:
    run = memoryview(bytearray(64))
    for dtype, code in CODES.items():
        for reduction in (each for each in Reduction if each is not Reduction.MEAN):
            number = int(reduction_code(reduction))
            if has_loop(dtype, reduction):
                native.reduce(run, run, run, code, number)
            else:
                with pytest.raises(ValueError, match="no loop"):
                    native.reduce(run, run, run, code, number)
    with pytest.raises(ValueError, match="64, 60 and 64 bytes"):
        native.reduce(run, run[:60], run, 9, 1)


def test_what_has_no_loop_to_be_scaled_is_not_scaled() -> None:
    def call() -> None:
        with teams(2) as made:
            handle = handle_of(made[0])
            for dtype, reduction in UNSCALED:
                operation = Operation(FrameKind.ALL_REDUCE, 0, "scaled", dtype, 100, Reduction.SUM, 0.5)
                tensor, statement = torch.ones(100).to(dtype), statement_of(operation, 1, 0)
                place, codes = (tensor.data_ptr(), tensor.nbytes), (CODES[dtype], reduction)
                with pytest.raises(ValueError, match="no scaling loop"):
                    native.all_reduce(handle, statement, list(place), 0.5, *codes)
                with pytest.raises(ValueError, match="no scaling loop"):
                    native.reduce_scatter(handle, statement, 2 * list(place), 0.5, *place, *codes)
            assert made[0].phase == 0  # nobody was told anything

    in_child(call)
