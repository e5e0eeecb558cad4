"""The direction of dependencies: every import in the package, function-local and TYPE_CHECKING ones too."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# Each line may import only lines above it. The parts of one line never import each other.
HOUSE = [
    {"bounds"},
    {"values"},
    {"errors"},
    {"files"},
    {"steps"},
    {"events"},
    {"terms"},
    {"environment"},
    {"manners"},
    {"settings"},
    {"job_config"},
    {"wire"},
    {"codecs"},
    {"transport"},
    {"links"},
    {"membership", "collectives", "parameters", "data"},
    {"checkpoint"},
    {"strategies"},
    {"parallel"},
    {"training"},
    {"engines", "watch"},
    {"disk"},
    {"entry"},
    {"launching"},
    {"plan"},
    {"search"},
    {"cli"},
    {"bench"},
]
LEVEL = {part: level for level, parts in enumerate(HOUSE) for part in parts}
# What engines and watch may know.
THIN = {"bounds", "values", "errors", "files", "steps", "events", "environment", "wire", "transport"}
# Where others come in: torch loads the first one, in processes that may have nothing to do with a job.
DOORS = {
    "torch_autoload": {"environment", "errors", "wire", "membership", "collectives", "entry", "training"},
    "__main__": {"cli"},
    "dask": {"data", "errors", "launching"},
    "ray": {"data", "environment", "errors", "launching"},
    "__init__": {"data", "entry", "launching", "training"},
    "spark": {"data", "errors", "launching"},
}


@functools.cache
def statements(path: Path) -> tuple[ast.AST, ...]:
    """What is imported and called in a module; all else in it is of no interest here."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return tuple(node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_parts(path: Path) -> set[tuple[str, int]]:
    found = set()
    for node in statements(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [node.module or ""] if node.module != "shoal" else [f"shoal.{alias.name}" for alias in node.names]
        found |= {(name.split(".")[1], node.lineno) for name in names if name.startswith("shoal.")}
    return {(name, line) for name, line in found if name != "_native"}  # the C extension, which imports nothing


def allowed(part: str) -> set[str]:
    if part in DOORS:
        return DOORS[part]
    if part in ("engines", "watch"):
        return THIN
    return {other for other, level in LEVEL.items() if level < LEVEL[part]}


def test_imports_point_up_the_house() -> None:
    for path in MODULES:
        part = part_of(path)
        assert part in LEVEL or part in DOORS, f"{part} has no place in the house; see docs/design.md"
        for other, line in imported_parts(path):
            assert other == part or other in allowed(part), f"{path.relative_to(ROOT)}:{line} imports shoal.{other}"


# Benchmarks compare with torch's own; torch loads the second one; then what others may carry for us, and we for others.
MAY_KNOW_PROCESS_GROUPS = (
    "bench/",
    "torch_autoload.py",
    "collectives/carriers/",
    "collectives/torch_backend/",
    "training/mistakes/wrappers.py",  # to refuse models that are wrapped
)


def test_no_torch_process_group_is_made_outside_benchmarks() -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in MODULES
        if any(name.startswith(("torch.distributed", "torch.nn.parallel")) for name in _all_imports(path))
        or "DistributedDataParallel" in path.read_text()
    }
    assert not {name for name in users if not name.startswith(MAY_KNOW_PROCESS_GROUPS)}


# The documented exception: a function that workers cannot import travels in a file of its owner alone.
MAY_PICKLE = ("entry/function_script.py", "launching/from_python/travelling.py")


def test_nothing_is_unpickled_or_evaluated() -> None:
    for path in MODULES:
        if str(path.relative_to(ROOT)) not in MAY_PICKLE:
            assert not {"pickle", "cloudpickle", "dill", "marshal", "shelve"} & _all_imports(path), path
        calls = [node.func for node in statements(path) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call, ast.Name) and call.id in ("eval", "exec")], path


def _all_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found
