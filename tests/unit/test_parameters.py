"""A function takes at most five parameters, besides `self` or `cls`: what belongs together is one named value.

Ruff counts `self` too, so that its limit would let a function outside classes have six.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
MOST_PARAMETERS = 5


def functions() -> Iterator[tuple[str, list[str]]]:
    """Every function with its parameters, those of `*` and `**` left out."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                names = [each.arg for each in named if each.arg not in ("self", "cls")]
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", names


def test_no_function_takes_more_than_five_parameters() -> None:
    found = dict(functions())
    assert len(found) > 1000
    assert not {place: names for place, names in found.items() if len(names) > MOST_PARAMETERS}
