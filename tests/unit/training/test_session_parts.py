"""Who writes what of a session: each part is changed by the module that defines its class, and by nobody else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import shoal
from shoal.training import session

ROOT = Path(shoal.__file__).parent
SESSION = Path(session.__file__)
ROOMS = ("training", "strategies", "entry")  # where sessions are known
SESSIONS = ("session", "_session", "newcomer", "last")  # what variables that hold one are called
CHANGES = {"loop"}  # what a session itself replaces after it was made


def stores(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are assigned or deleted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def last_name(node: ast.expr) -> str:
    """`held` of `self.session.held`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def owners() -> dict[str, str]:
    """By the name of a part, as sessions have it: the module that defines its class."""
    tree = ast.parse(SESSION.read_text(encoding="utf-8"))
    modules = {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    (made,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Session"]
    found = dict.fromkeys(SESSIONS, "shoal.training.session") | {"votes": "shoal.strategies.replica.votes"}
    for node in made.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if node.name == "__init__":
            kinds = {argument.arg: ast.unparse(argument.annotation or argument) for argument in node.args.args}
            for step in node.body:
                if isinstance(step, ast.Assign) and isinstance(step.targets[0], ast.Attribute):
                    kind = step.value.func if isinstance(step.value, ast.Call) else step.value
                    name = kinds.get(ast.unparse(kind), ast.unparse(kind))
                    found |= {step.targets[0].attr: modules[name]} if name in modules else {}
        elif any(ast.unparse(each) == "property" for each in node.decorator_list):  # parts of parts
            name = ast.unparse(node.returns or node)
            found |= {node.name: modules[name]} if name in modules and name != "Iteration" else {}
    return found


def foreign_writes(text: str, module: str) -> list[str]:
    """What a module assigns of a session, or of one of its parts, that is not its own class."""
    known = owners()
    return [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for node in stores(ast.parse(text))
        if (owner := known.get(last_name(node.value))) is not None and owner != module
    ]


def test_the_parts_are_known() -> None:
    parts = {
        "held": "held_state",
        "place": "script_place",
        "batch": "open_batch",
        "watched": "watched",
        "saver": "saving",
    }
    assert {name: owners()[name].rpartition(".")[2] for name in parts} == parts


def test_nobody_writes_to_a_part_that_is_not_its_own() -> None:
    found = []
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        module = ".".join(("shoal", *path.relative_to(ROOT).with_suffix("").parts))
        found += foreign_writes(path.read_text(encoding="utf-8"), module)
    assert not found, "let the part have a method that says what happened"


def test_what_is_written_elsewhere_is_found() -> None:
    text = "def f(session):\n    session.held.step += 1\n    saver = session.saver\n    saver.last_step, x = 3, 4\n"
    text += "    session.loop = None\n    session.held.apply(is_compared=False)\n"
    found = foreign_writes(text, "shoal.training.elsewhere")
    assert {each.rpartition(" ")[2] for each in found} == {"session.held.step", "saver.last_step", "session.loop"}
    assert not foreign_writes("def f(held):\n    held.step = 1\n", owners()["held"])


def test_a_session_is_made_once() -> None:
    (made,) = [
        node
        for node in ast.parse(SESSION.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "Session"
    ]
    methods = [node for node in made.body if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    assert {node.attr for method in methods for node in stores(method)} <= CHANGES | {"digest"}  # of an iteration
