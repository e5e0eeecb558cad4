"""The page that compares engines has all of them, says *later* of those that are not there, and links to all pages."""

from __future__ import annotations

from pathlib import Path

import shoal.launching.elsewhere
from shoal.settings.engines.engine_settings import LOCAL
from shoal.settings.kinds import OWN_ENGINES

PAGES = Path(__file__).parents[2] / "docs" / "engines"
MODULES = Path(shoal.launching.elsewhere.__file__).parent
NO_ENGINE = ("by hand", "kubernetes")  # what `--on` does not name


def tables() -> list[list[str]]:
    """The first cells of the rows of each table, without their links."""
    found: list[list[str]] = []
    before = ""
    for line in (PAGES / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            if not before.startswith("|"):
                found.append([])
            else:
                found[-1].append(line.split("|")[1].strip().partition("]")[0].lstrip("["))
        before = line
    return found


def test_each_table_has_every_engine_and_says_which_are_to_come() -> None:
    is_there = {engine: engine == LOCAL or (MODULES / f"{engine}_jobs.py").exists() for engine in OWN_ENGINES}
    wanted = {f"{engine}" if there else f"{engine}, *later*" for engine, there in is_there.items()} | {*NO_ENGINE}
    for rows in tables():
        assert {row.lower() for row in rows} == wanted


def test_every_page_about_an_engine_is_linked() -> None:
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    others = [page.name for page in PAGES.glob("*.md") if page.name != "index.md"]
    assert others
    assert [name for name in others if f"]({name})" not in text] == []
