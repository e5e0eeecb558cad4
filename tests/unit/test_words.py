"""One meaning per word: what `docs/glossary.md` says, where words stand, and names that must not be there twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
# Words that had several meanings once.
WATCHED = (
    *("carrier", "engine", "lease", "ledger", "journal", "stage", "note", "regroup", "forming", "past", "ending"),
    *("plan", "group", "link", "keeper"),
)
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


def names_in(path: Path) -> Iterator[str]:
    """Names that a module defines: itself, its package, classes, functions and fields. Not local variables."""
    yield path.stem
    yield path.parent.name
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def words_in(name: str) -> set[str]:
    """'ServerLine' and 'server_line' are both server and line."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_words_with_one_meaning_stand_only_where_the_glossary_says() -> None:
    """A pattern with a slash or .py is of modules, any other of names."""
    defined = {str(path.relative_to(ROOT)): set(names_in(path)) for path in ROOT.rglob("*.py")}
    elsewhere: dict[str, list[str]] = {}
    unused: dict[str, list[str]] = {}
    for forms, places in table("Where words stand"):
        allowed, met = re.findall(r"`([^`]+)`", places), set()
        for path, names in defined.items():
            for name in names:
                if words_in(name).isdisjoint(forms.split(", ")):
                    continue
                fits = {each for each in allowed if fnmatchcase(path if "/" in each or ".py" in each else name, each)}
                met |= fits
                if not fits:
                    elsewhere.setdefault(forms, []).append(f"{path}: {name}")
        if left := [each for each in allowed if each not in met]:
            unused[forms] = left
    assert not elsewhere, "names with these words need another word, or a place in the glossary"
    assert not unused, "nothing is there any more: take these places out of the glossary"


def test_words_that_had_two_meanings_are_watched() -> None:
    watched = {forms.split(", ")[0] for forms, _ in table("Where words stand")}
    assert watched >= set(WATCHED)
    assert set(WATCHED) <= {word for word, _ in table("Words")}
