"""What `make dist` builds, in clean environments: the wheel and the source package, with and without a compiler.

A clean environment has nothing but the package itself; what Shoal depends on is found in this environment, so that
torch is not installed again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import shoal
from shoal.transport.native import native

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
PATIENCE = 300.0  # seconds; the machine may be busy
PAGE = ("report.css", "axes.js", "chart.js", "controls.js")
DATA = ("py.typed", "native/module.c", "native/reduce.h", *(f"watch/report/{name}" for name in PAGE))

# Says where the package is and what is missing of it, and runs what the C extension would do.
LOOK = f"""
import sys
from pathlib import Path
import shoal
from shoal.transport.native import native
place = Path(shoal.__file__).parent
assert place.is_relative_to(sys.prefix), place
assert not [name for name in {DATA!r} if not (place / name).is_file()], list(place.rglob("*"))
print("C" if native is not None else "Python", len(list(place.glob("_native*.so"))))
"""
WITHOUT_C = """
import torch
from support.memory_groups import WAYS, memory_groups
assert "memory" not in WAYS
with memory_groups("memory-python", 3) as groups:
    tensors = [torch.full((300_000,), float(group.rank)) for group in groups]
    for pending in [group.all_reduce(tensor, label="sum") for group, tensor in zip(groups, tensors)]:
        pending.wait()
    assert all((tensor == 3).all() for tensor in tensors)
print("works")
"""
TRAIN = """
import shoal, torch

def train(run):
    model = run.model(torch.nn.Linear(2, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    for x, y in run.batches(data, batch_size=2):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

shoal.main(train)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source package, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], folder)
    return folder


def run(command: list[str], folder: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHOAL_NATIVE")}
    done = subprocess.run(
        command, cwd=folder, env=kept | variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(package: Path, folder: Path, *, has_compiler: bool) -> Path:
    """A new environment with this package; the folder of its programs."""
    clean = folder / "clean"
    run([sys.executable, "-m", "venv", "--without-pip", str(clean)], folder)
    [site] = clean.glob("lib/python*/site-packages")
    # Files ending in .pth are not read in folders that a .pth file names, so this checkout is not found through them.
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "dependencies.pth").write_text("\n".join(others), encoding="utf-8")
    nothing = str(folder / "no-such-compiler")
    without = {} if has_compiler else {"CC": nothing, "CXX": nothing, "PATH": str(clean / "bin")}
    pip = [sys.executable, "-m", "pip", "--python", str(clean / "bin" / "python")]
    run([*pip, "install", "--quiet", "--no-deps", "--ignore-installed", str(package)], folder, **without)
    return clean / "bin"


def test_both_packages_hold_what_belongs_to_them_and_no_more(dist: Path) -> None:
    [wheel], [source] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert wheel.name.startswith(f"shoal-{shoal.__version__}-")
    assert source.name == f"shoal-{shoal.__version__}.tar.gz"
    in_wheel = zipfile.ZipFile(wheel).namelist()
    with tarfile.open(source) as opened:
        in_source = [name.partition("/")[2] for name in opened.getnames()]
    assert {f"shoal/{name}" for name in DATA} <= set(in_wheel)
    assert {f"src/shoal/{name}" for name in DATA} | {"pyproject.toml", "README.md", "LICENSE"} <= set(in_source)
    assert not [name for name in in_wheel if not name.startswith("shoal")], "the wheel has files of other packages"
    assert not [name for name in in_source if name.endswith((".so", ".pyc")) or name.startswith((".venv", "runs"))]
    assert len([name for name in in_wheel if name.endswith(".so")]) == (native is not None)


@pytest.mark.parametrize(("kind", "has_compiler"), [("*.whl", False), ("*.tar.gz", True), ("*.tar.gz", False)], ids=str)
def test_an_installed_package_runs_a_job(dist: Path, tmp_path: Path, kind: str, has_compiler: bool) -> None:
    [package] = dist.glob(kind)
    programs = installed(package, tmp_path, has_compiler=has_compiler)
    expects_c = native is not None and (has_compiler or kind == "*.whl")
    look = [str(programs / "python"), "-P", "-c"]
    assert run([*look, LOOK], tmp_path) == ("C 1\n" if expects_c else "Python 0\n")
    assert run([str(programs / "shoal"), "--version"], tmp_path).startswith("shoal ")
    assert "shoal COMMAND" in run([str(programs / "shoal"), "--help"], tmp_path)
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    assert "finished: 2 steps" in run([str(programs / "shoal"), "run", "-n", "2", "train.py"], tmp_path)
    if not expects_c:
        assert run([*look, WITHOUT_C], tmp_path, PYTHONPATH=str(ROOT / "tests")) == "works\n"
