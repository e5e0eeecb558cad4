"""The interface of a display, the quiet and the plain one, and the choice of one.

Displays know no sockets and no processes. They write to standard output; `print` writes the line of a worker, above the
progress. Events may come in any order, and a display never raises because of one. Not here: the live display (`live`).
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

from shoal.events import Event, StepsApplied, StorageFailed, StorageRestored
from shoal.watch import server_words
from shoal.watch.board import Board
from shoal.watch.screen.notices import notices
from shoal.watch.screen.summary import has_something, summary_lines
from shoal.watch.wording import progress_parts

PROGRESS_INTERVAL = 2.0  # seconds between progress lines, by the clock of the events
SERVERS_INTERVAL = 10.0  # seconds between lines about parameter servers


class Display(ABC):
    """Shows a job while it runs and sums it up at the end."""

    board: Board

    @abstractmethod
    def show(self, event: Event, time: float) -> None:
        """Take in an event; draw at most a few times a second."""

    @abstractmethod
    def print(self, *lines: str) -> None:
        """Write whole lines above the progress."""

    @abstractmethod
    def summarize(self, *more: str) -> None:
        """Write the summary, and `more` lines below it, if there is something to sum up."""

    @abstractmethod
    def close(self) -> None:
        """Take the progress off the screen and leave the terminal as it was. Safe to call twice."""


class Quiet(Display):
    """Shows no progress, only printed lines and that the job stands still. `--progress none`."""

    def __init__(self) -> None:
        self.board = Board()

    def show(self, event: Event, time: float) -> None:
        self.board = self.board.apply(event, time)
        if isinstance(event, StorageFailed | StorageRestored) and event.holds_up:
            write_lines([event.reason])

    def print(self, *lines: str) -> None:
        write_lines(lines)

    def summarize(self, *more: str) -> None:
        pass

    def close(self) -> None:
        pass


class Plain(Display):
    """Lines, for files and pipes: one of progress every couple of seconds, and one for each notice."""

    def __init__(self) -> None:
        self.board = Board()
        self._last_line: float | None = None  # time of the last progress line
        self._last_serving = -math.inf  # time of the last line about servers

    def show(self, event: Event, time: float) -> None:
        told = notices(self.board, event, time)
        self.board = self.board.apply(event, time)
        if told:
            write_lines(told)
        elif isinstance(event, StepsApplied) and (
            self._last_line is None or time - self._last_line >= PROGRESS_INTERVAL
        ):
            self._last_line = time
            write_lines([", ".join(progress_parts(self.board)), *self._serving(time)])

    def _serving(self, time: float) -> list[str]:
        """A line about the servers, at most every `SERVERS_INTERVAL`."""
        line = server_words.progress(self.board.servers)
        if not line or time - self._last_serving < SERVERS_INTERVAL:
            return []
        self._last_serving = time
        return [line]

    def print(self, *lines: str) -> None:
        write_lines(lines)

    def summarize(self, *more: str) -> None:
        if has_something(self.board):
            write_lines([*summary_lines(self.board), *more])

    def close(self) -> None:
        pass


def write_lines(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def open_display(progress: str, workers: int) -> Display:
    """`progress` is one of `job_config.PROGRESS`; `auto` is live in a terminal or a notebook and plain elsewhere."""
    if progress == "none":
        return Quiet()
    if progress != "plain" and "IPython" in sys.modules:
        from shoal.watch.screen.notebook import Notebook, is_notebook  # noqa: PLC0415  not needed elsewhere

        if is_notebook():
            return Notebook(workers)
    if progress == "live" or (progress == "auto" and sys.stdout.isatty()):
        from shoal.watch.screen.live import Live  # noqa: PLC0415  rich is not needed, nor paid for, without a terminal

        return Live(workers)
    return Plain()
