"""The backend `shoal` of torch.distributed: every operation, on one machine and on several, none of them by gloo."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from support import torch_programs
from support.torch_ranks import run_ranks

SIZE = 3
MACHINES: list[Any] = [
    pytest.param((), id="one machine"),
    pytest.param((2, 1), id="two machines"),
    pytest.param((1, 1, 1), id="three machines"),
]


@pytest.mark.parametrize("machines", MACHINES)
def test_every_operation_works_and_none_is_carried_by_gloo(machines: tuple[int, ...]) -> None:
    assert run_ranks(torch_programs.everything, SIZE, machines=machines) == ["shoal"] * SIZE


def test_tensors_of_any_layout_and_type() -> None:
    run_ranks(torch_programs.odd_tensors, 2)


@pytest.mark.parametrize(("size", "machines"), [(2, ()), (3, ()), (4, ()), (2, (1, 1)), (3, (2, 1)), (4, (1, 1, 2))])
def test_whole_numbers_are_averaged_as_nccl_does(size: int, machines: tuple[int, ...]) -> None:
    run_ranks(torch_programs.averages_of_whole_numbers, size, machines=machines)


def test_lightning_can_agree_on_a_counter() -> None:
    assert run_ranks(torch_programs.as_lightning_does, 2) == [10, 10]


def test_importing_torch_knows_the_backend_and_loads_nothing_of_it() -> None:
    program = (
        "import sys, torch; import torch.distributed as dist; "
        "print('shoal' in dist.Backend.backend_list, [name for name in sys.modules if name.startswith('shoal.coll')], "
        "dist.get_default_backend_for_device('cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True [] gloo"
