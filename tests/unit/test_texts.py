"""What users are told about bad input stands together, in one module per package: a word is mended in one place.

The list of packages that are not mended yet may only shrink.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
TEXTS = "texts.py"
# Errors that an option, a call, a file or data of the user causes.
USERS_MISTAKES = frozenset(
    {
        "AddressUnavailable",
        "CheckpointUnusable",
        "DataError",
        "RunDirectoryExists",
        "ScriptStartsProcesses",
        "UsageError",
    }
)

# Packages in which several modules write such texts.
NOT_MENDED: frozenset[str] = frozenset()


def own_texts(path: Path) -> Iterator[int]:
    """Lines where an error about a user's mistake is made with a text that is written there."""
    source = path.read_text(encoding="utf-8")
    if not any(f"{name}(" in source for name in USERS_MISTAKES):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[text, *_]) if name in USERS_MISTAKES and is_text(text):
                yield node.lineno


def is_text(node: ast.expr) -> bool:
    """A literal or an f-string, also where something is added to it, it is one of two, or it is formatted."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left=one, right=other) | ast.IfExp(body=one, orelse=other):
            return is_text(one) or is_text(other)
        case ast.Call(func=ast.Attribute(value=formatted)):
            return is_text(formatted)
    return False


def packages() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("*/__init__.py"))


def modules_with_texts(package: Path) -> dict[str, list[int]]:
    """By module, the lines where it writes texts of its own."""
    found = {str(path.relative_to(ROOT)): list(own_texts(path)) for path in sorted(package.rglob("*.py"))}
    return {name: lines for name, lines in found.items() if lines and Path(name).name != TEXTS}


def test_texts_about_bad_input_stand_together_in_each_package() -> None:
    scattered = {}
    for package in packages():
        found = modules_with_texts(package)
        if found and (len(found) > 1 or any(package.rglob(TEXTS))):
            scattered[package.name] = found
    left = {name: found for name, found in scattered.items() if name not in NOT_MENDED}
    assert not left, f"move these texts to {TEXTS} of their package"
    assert not NOT_MENDED - set(scattered), "these packages are mended: take them off the list"
