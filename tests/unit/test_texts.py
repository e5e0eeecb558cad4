"""What users are told stands together, in one module per package: a word is mended in one place.

This holds for errors that users cause, wherever their text is written, and for lines that are shown while users wait or
are written to standard error. The list of packages that are not mended yet may only shrink.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import shoal
from support.docs.message_texts import error_names
from support.docs.text_flow import WORD, Flow

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
# What shows a line: a few words before another text, such as `shoal: warning:`, are no text of their own.
SHOWN = frozenset({"announce", "stderr", "told_if_slow"})
PREFIX = re.compile(r"^(shoal: )?((warning|error): )?")
FEWEST_WORDS = 3

# Packages in which several modules write such texts.
NOT_MENDED: frozenset[str] = frozenset()


def own_texts(path: Path) -> Iterator[str]:
    """Texts that a module writes itself."""
    for name, text in Flow(ast.parse(path.read_text(encoding="utf-8")), error_names()).written(literals):
        is_line = name in SHOWN and len(WORD.findall(PREFIX.sub("", text))) >= FEWEST_WORDS
        if name in USERS_MISTAKES or is_line:
            yield text


def literals(node: ast.expr) -> Iterator[str]:
    """A literal or the words of an f-string, also where something is added to it, it is one of two, or is formatted."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else " " for part in values)
            if words.strip():
                yield words
        case ast.BinOp(left=one, right=other) | ast.IfExp(body=one, orelse=other):
            yield from (*literals(one), *literals(other))
        case ast.BoolOp(values=values):
            yield from (text for value in values for text in literals(value))
        case ast.Call(func=ast.Attribute(value=formatted)):
            yield from literals(formatted)


def packages() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("*/__init__.py"))


def modules_with_texts(package: Path) -> dict[str, list[str]]:
    """By module, texts that it writes itself."""
    found = {str(path.relative_to(ROOT)): list(own_texts(path)) for path in sorted(package.rglob("*.py"))}
    return {name: lines for name, lines in found.items() if lines and Path(name).name != TEXTS}


def test_texts_stand_together_in_each_package() -> None:
    scattered = {}
    for package in packages():
        found = modules_with_texts(package)
        if found and (len(found) > 1 or any(package.rglob(TEXTS))):
            scattered[package.name] = found
    left = {name: found for name, found in scattered.items() if name not in NOT_MENDED}
    assert not left, f"move these texts to {TEXTS} of their package"
    assert not NOT_MENDED - set(scattered), "these packages are mended: take them off the list"
