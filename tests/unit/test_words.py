"""One meaning per word: what `docs/glossary.md` says, and names of classes and modules that must not be there twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.stem not in ("__init__", "__main__"))


def table(heading: str) -> Iterator[list[str]]:
    """Rows of the table below a heading, without its own two head lines."""
    section = GLOSSARY.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return ([cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:])


def folder(path: Path) -> str:
    return str(path.parent.relative_to(ROOT))


def test_every_word_has_one_meaning() -> None:
    words = [word for word, meaning in table("Words") if meaning]
    assert len(words) > 40
    assert words == sorted(set(words)), "words stand once each, in alphabetical order"


def test_no_public_class_name_is_there_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


def test_no_module_name_is_there_twice_unless_the_glossary_says_why() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        places.setdefault(path.stem, []).append(folder(path))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    reasons = {}
    for name, where, why in table("Module names that repeat"):
        assert why, f"the glossary gives no reason for {name}"
        reasons[name.strip("`")] = re.findall(r"`([^`]+)`", where)
    unexplained = {
        name: left
        for name, where in twice.items()
        if len(left := [each for each in where if not any(fnmatchcase(each, known) for known in reasons.get(name, ()))])
        > (0 if name in reasons else 1)
    }
    assert not unexplained
    assert not set(reasons) - set(twice), "these names do not repeat any more: take them out of the glossary"
