"""The walks in `docs/design.md` are those that a traced job takes today."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from support import walk

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


@pytest.mark.timeout(2 * walk.PATIENCE)
@pytest.mark.long
def test_the_walks_in_the_design_are_those_that_jobs_take() -> None:
    expected = walk.written(DESIGN.read_text(encoding="utf-8"))
    actual = walk.walks(expected)
    if actual != expected:
        changes = "\n".join(difflib.unified_diff(expected.splitlines(), actual.splitlines(), "design.md", "jobs", n=2))
        pytest.fail(f"write them anew with `python -m tests.support.walk --write docs/design.md`:\n{changes}")
