"""Plain tables on a terminal. A job's texts may hold control characters, which are replaced."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from shoal.errors import printable

LEAST_LAST = 12  # characters of the last column that stay on a narrow terminal


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> list[str]:
    """Lines with the columns under each other; the last one is cut to the terminal's width."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    room = shutil.get_terminal_size((160, 24)).columns - len(indent) - sum(width + 2 for width in widths[:-1])
    widths[-1] = min(widths[-1], max(LEAST_LAST, room))
    return [indent + _line(row, widths, right) for row in cells]


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    aligned = (
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row[:-1], widths[:-1], strict=True))
    )
    last = row[-1] if len(row[-1]) <= widths[-1] else row[-1][: widths[-1] - 3] + "..."
    return "  ".join((*aligned, last.rjust(widths[-1]) if len(row) - 1 in right else last)).rstrip()
