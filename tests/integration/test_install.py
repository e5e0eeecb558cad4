"""Installing without a compiler: the package is whole, and does in Python what the C extension would do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import threading, torch
from shoal.transport.native import native
assert native is None
from support.memory_groups import WAYS, memory_groups
assert "memory" not in WAYS
with memory_groups("memory-python", 3) as groups:
    tensors = [torch.full((300_000,), float(group.rank)) for group in groups]
    for pending in [group.all_reduce(tensor, label="sum") for group, tensor in zip(groups, tensors)]:
        pending.wait()
    assert all((tensor == 3).all() for tensor in tensors)
print("works")
"""


@pytest.mark.long
def test_without_a_compiler_it_installs_and_works(tmp_path: Path) -> None:
    target = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(ROOT)]
    # A name for this build's own files, so that what was compiled in the source tree is not taken.
    without_compiler = {**os.environ, "CC": str(tmp_path / "no-such-compiler"), "PYTHONPATH": ""}
    subprocess.run([*command, f"--config-settings=build_dir={tmp_path}"], check=True, env=without_compiler, timeout=110)
    assert (target / "shoal" / "native" / "module.c").exists()
    assert not list((target / "shoal").glob("_native*.so"))
    paths = os.pathsep.join([str(target), str(ROOT / "tests")])
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert (ended.stdout, ended.returncode) == ("works\n", 0), ended.stderr
