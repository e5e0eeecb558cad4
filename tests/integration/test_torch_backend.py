"""The backend `shoal` of torch.distributed: every operation, on one machine and on several, none of them by gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
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


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_ranks_hold_the_same_bits_for_every_size_up_to_1000(size: int) -> None:
    run_ranks(torch_programs.bits, size)


def test_tensors_of_any_layout_and_type() -> None:
    run_ranks(torch_programs.odd_tensors, 2)


@pytest.mark.parametrize(("size", "machines"), [(2, ()), (3, ()), (4, ()), (2, (1, 1)), (3, (2, 1)), (4, (1, 1, 2))])
def test_whole_numbers_are_averaged_as_nccl_does(size: int, machines: tuple[int, ...]) -> None:
    run_ranks(torch_programs.averages_of_whole_numbers, size, machines=machines)


def test_lightning_can_agree_on_a_counter() -> None:
    assert run_ranks(torch_programs.as_lightning_does, 2) == [10, 10]


def written(path: Path, token: str) -> str:
    path.write_text(token)
    path.chmod(0o600)
    return str(path)


def test_a_token_from_a_file_never_goes_through_the_store(tmp_path: Path) -> None:
    secret = "the token of a job"
    found = run_ranks(
        torch_programs.what_the_store_saw, 2, written(tmp_path / "token", secret), machines=(1, 1), init=False
    )
    assert [total for _, _, total in found] == [2.0, 2.0]
    tokens = {token for _, token, _ in found}
    assert len(tokens) == 1
    for seen, _, _ in found:
        assert seen  # they did meet there
        for words in (secret, *tokens):
            assert not [one for one in seen if words.encode() in one]


def test_without_a_file_the_store_carries_the_token_as_the_docs_say() -> None:
    found = run_ranks(torch_programs.what_the_store_saw, 2, "", machines=(1, 1), init=False)
    assert any(token.encode() in one for seen, token, _ in found for one in seen)


@pytest.mark.parametrize(
    "files",
    [
        ("one", "other"),
        *(
            pytest.param(files, marks=pytest.mark.long)
            for files in (("one", ""), ("", "one"), ("one", "missing"), ("empty", "empty"))
        ),
    ],
)
def test_ranks_with_different_tokens_form_no_group(tmp_path: Path, files: tuple[str, ...]) -> None:
    paths = {name: written(tmp_path / name, name) for name in ("one", "other")}
    paths |= {"": "", "missing": str(tmp_path / "missing"), "empty": written(tmp_path / "empty", "")}
    told = run_ranks(torch_programs.try_to_form, 2, [paths[name] for name in files], init=False)
    assert all(told)
    assert any("SHOAL_TOKEN_FILE" in text for text in told), told


def test_importing_torch_knows_the_backend_and_loads_nothing_of_it() -> None:
    program = (
        "import sys, torch; import torch.distributed as dist; "
        "print('shoal' in dist.Backend.backend_list, [name for name in sys.modules if name.startswith('shoal.coll')], "
        "dist.get_default_backend_for_device('cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True [] gloo"
