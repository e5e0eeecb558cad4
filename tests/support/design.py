"""Tables of `docs/design.md`, for tests that keep them true."""

from __future__ import annotations

from pathlib import Path

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


def rows(heading: str) -> list[list[str]]:
    """Cells of the table whose first heading this is."""
    text = DESIGN.read_text(encoding="utf-8").partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
