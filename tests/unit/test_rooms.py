"""The rooms of the house: folders that can be taken in at a glance, modules that can be read in one go.

The lists of what is not done yet may only shrink: an entry that has become unnecessary fails.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
MOST_MODULES = 12  # in a folder, besides `__init__.py`
MOST_LINES = 400
SMALL = 60  # lines: what is smaller joins its only importer

# Small modules with one importer that stay by themselves, and why.
# What a package that offers an engine or a strategy has to make.
INTERFACES = frozenset({"launching/elsewhere/chosen.py", "strategies/choosing.py"})
PURE_CORES = frozenset(
    {
        "collectives/schedules/double_tree.py",
        "collectives/schedules/hierarchical.py",
        "engines/nodes/node_words.py",
        "engines/spark/spark_failures.py",
        "links/host_links.py",
        "links/rounds.py",
        "membership/generations/losses.py",
        "membership/generations/missing.py",
        "membership/record/truncations.py",
        "parameters/keeper/cut_links.py",
        "plan/members/reach_check.py",
        "wire/texts.py",
    }
)

# Modules that people import by name, such as `import shoal.spark`: they can only stand at the top, and do not count.
IMPORTED_BY_PEOPLE = frozenset({"dask.py", "ray.py", "spark.py"})
# Rooms that have more modules than they should.
FULL_ROOMS: frozenset[str] = frozenset()
# Modules that are too long.
LONG_MODULES: frozenset[str] = frozenset()
# Small modules that have not joined their only importer.
NOT_JOINED: frozenset[str] = frozenset(
    {
        "engines/ray/agent_actor.py",  # Ray imports it on nodes, without the keeper
        "launching/from_python/ray_sink.py",  # Ray imports it on nodes; here it is imported once Ray is needed
    }
)


@functools.cache
def modules() -> Mapping[str, Path]:
    """By dotted name."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("shoal", *path.relative_to(ROOT).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


@functools.cache
def importers() -> Mapping[str, frozenset[str]]:
    """By module, which others import it."""
    found: dict[str, set[str]] = {name: set() for name in modules()}
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported: list[str] = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                imported = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for other in imported:
                if other in found and other != name:
                    found[other].add(name)
    return {name: frozenset(others) for name, others in found.items()}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_folder_has_more_modules_than_can_be_taken_in_at_a_glance() -> None:
    rooms: dict[str, int] = {}
    for path in modules().values():
        if path.name != "__init__.py" and relative(path) not in IMPORTED_BY_PEOPLE:
            room = relative(path.parent)
            rooms[room] = rooms.get(room, 0) + 1
    too_full = {room for room, count in rooms.items() if count > MOST_MODULES}
    assert not too_full - FULL_ROOMS, "these rooms need sub-packages that are named for what they hold"
    assert not FULL_ROOMS - too_full, "these rooms are fine: take them off the list FULL_ROOMS"


def test_no_module_is_longer_than_can_be_read_in_one_go() -> None:
    too_long = {relative(path) for path in modules().values() if lines_of(path) > MOST_LINES}
    assert not too_long - LONG_MODULES, "these modules hold more than one thing"
    assert not LONG_MODULES - too_long, "these modules are short enough: take them off the list LONG_MODULES"


def test_a_small_module_with_one_importer_is_an_interface_or_a_pure_core() -> None:
    small = {
        relative(path)
        for name, path in modules().items()
        if path.name != "__init__.py" and lines_of(path) < SMALL and len(importers()[name]) == 1
    }
    alone = INTERFACES | PURE_CORES
    assert not small - alone - NOT_JOINED, "join these with their importers, or list them as interface or pure core"
    assert not (alone | NOT_JOINED) - small, "these are gone, larger or have more importers: take them off the lists"
    assert not alone & NOT_JOINED
