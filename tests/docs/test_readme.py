"""What the README and the first page say of extras and engines is what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from shoal.settings.kinds import OWN_ENGINES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"]) - {"test"}


def test_the_readme_lists_every_extra() -> None:
    rows = re.findall(r"^\| `shoal\[(\w+)\]` \|", README, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == extras()


def test_the_first_page_lists_every_extra() -> None:
    [sentence] = re.findall(r"Extras bring .*?\.\n\n", INDEX, re.DOTALL)
    named = re.findall(r"`(?:pip install \"\.\[)?(\w+)(?:\]\")?`", sentence)
    assert set(named) == extras()


def test_the_readme_lists_every_engine() -> None:
    [row] = re.findall(r"^\| engine \(`--on`\) \| ([^;|]*);", README, re.MULTILINE)
    assert set(row.split(", ")) == set(OWN_ENGINES)


def test_the_first_page_says_what_a_worker_is_before_it_starts_several() -> None:
    assert INDEX.index("is a *worker*") < INDEX.index("$ shoal run -n 4")
