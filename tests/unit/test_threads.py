"""Every thread and every lock is in the tables of `docs/design.md`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import shoal
from support.design import rows

ROOT = Path(shoal.__file__).parent
THREADS = frozenset({"Thread", "ThreadPoolExecutor"})
LOCKS = frozenset({"Lock", "RLock", "Condition"})


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if not name.startswith("bench/"):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def makes(node: ast.AST | None, kinds: frozenset[str]) -> bool:
    """A call of one of these; a condition over a lock that is there already makes none."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=given) if name in kinds:
            return name != "Condition" or not given or makes(given[0], kinds)
    return False


def test_every_thread_is_listed_with_the_module_that_makes_it() -> None:
    made = {name for name, tree in modules() if any(makes(node, THREADS) for node in ast.walk(tree))}
    assert {module for row in rows("thread") for module in re.findall(r"`([^`]+)`", row[1])} == made


def test_every_lock_is_listed_once() -> None:
    made = set()
    for name, tree in modules():
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Attribute(attr=kept) | ast.Name(id=kept)], value=value) if makes(
                    value, LOCKS
                ):
                    made.add(f"`{name}: {kept}`")
    listed = [row[0] for row in rows("lock")]
    assert sorted(listed) == sorted(made)
