"""Progress in a notebook: one line that is updated in place below the cell, and printed lines as they come.

A notebook's standard output is no terminal, and lines that only grow would fill the page of a long job.
"""

from __future__ import annotations

import html
import sys
from typing import Any

from shoal.events import Event, StepsApplied
from shoal.watch.board import Board
from shoal.watch.screen.display import Plain, write_lines
from shoal.watch.screen.notices import notices
from shoal.watch.wording import progress_parts

INTERVAL = 0.5  # seconds between two drawings, by the clock of the events


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Notebook(Plain):
    def __init__(self, workers: int) -> None:
        super().__init__()
        self._workers = workers
        self._drawn: float | None = None  # time of the last drawing
        self._place: Any = None  # of the line on the page, once there is one

    def show(self, event: Event, time: float) -> None:
        told = notices(self.board, event, time)
        self.board = self.board.apply(event, time)
        if told:
            write_lines(told)
        is_due = self._drawn is None or not isinstance(event, StepsApplied) or time - self._drawn >= INTERVAL
        if self.board.joined and is_due:  # a plain torch script never joins and has no progress to show
            self._drawn = time
            self._draw()

    def close(self) -> None:
        if self._place is not None:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display  # noqa: PLC0415  there in a notebook only

        shown = {"text/plain": line(self.board, self._workers), "text/html": picture(self.board, self._workers)}
        if self._place is None:
            show: Any = display  # it has no types
            self._place = show(shown, raw=True, display_id=True)
        else:
            self._place.update(shown, raw=True)


def line(board: Board, workers: int) -> str:
    if not board.workers:
        return f"{len(board.joined)} of {workers} workers are here"
    return ", ".join(progress_parts(board))


def picture(board: Board, workers: int) -> str:
    """The line with a bar before it, where the number of steps is known."""
    total = board.loop.steps if board.loop else None
    bar = f'<progress value="{board.done}" max="{total}"></progress> ' if total else ""
    return f"<span>{bar}{html.escape(line(board, workers))}</span>"
