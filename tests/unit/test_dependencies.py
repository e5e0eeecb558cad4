"""What Shoal imports is what `pyproject.toml` installs: always, or with the extra that the user asks for."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import shoal

SOURCE = Path(shoal.__file__).parent
PROJECT = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALWAYS = frozenset(re.match(r"[\w-]+", wanted)[0] for wanted in PROJECT["dependencies"])  # type: ignore[index]
EXTRAS = frozenset(
    re.match(r"[\w-]+", wanted)[0]  # type: ignore[index]  # each begins with a name
    for extra, several in PROJECT["optional-dependencies"].items()
    for wanted in several
    if extra != "test"
)
# Imported only where they are there already.
BROUGHT_ALONG = {
    "dask": "the extra dask: distributed depends on it",
    "IPython": "a notebook, which runs in it",
    "deepspeed": "whoever wants to compare with it: shoal bench collectives",
}


def imported() -> dict[str, str]:
    """By package: a module that imports it, at its top or in a function."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                names = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
            for name in names:
                found.setdefault(name.partition(".")[0], path.relative_to(SOURCE).as_posix())
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names and name != "shoal"}


def test_whatever_shoal_imports_can_be_installed_with_it() -> None:
    unknown = {name: path for name, path in imported().items() if name not in ALWAYS | EXTRAS | set(BROUGHT_ALONG)}
    assert not unknown, "add these to pyproject.toml, or do without them"


def test_whatever_is_always_installed_is_imported() -> None:
    assert sorted(ALWAYS - set(imported())) == []
    assert sorted(set(BROUGHT_ALONG) - set(imported())) == []
