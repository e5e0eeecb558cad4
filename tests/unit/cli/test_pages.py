"""The pages for users say what the code does."""

from __future__ import annotations

from pathlib import Path

import shoal.transport.connection.handshake  # noqa: F401  # it defines an error
from shoal.errors import all_errors

DOCS = Path(__file__).parents[3] / "docs"


def table(page: str) -> list[list[str]]:
    """The cells of a page's first table, without its heading."""
    rows = [line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_every_error_is_listed_under_its_exit_code() -> None:
    listed = {name: int(row[0]) for row in table("exit-codes.md") for name in row[1].split(", ") if name}
    assert listed == {error.__name__: error.exit_code for error in all_errors()}
