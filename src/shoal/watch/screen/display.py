"""The interface of a display, and the choice of one. Displays know no sockets and no processes.

Both displays write to standard output; a line of a worker is written by `print`, above the progress. Events may come in
any order, and a display never raises because of one.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

from shoal.events import Event, StorageFailed, StorageRestored
from shoal.watch.board import Board


class Display(ABC):
    """Shows a job while it runs and sums it up at the end."""

    board: Board

    @abstractmethod
    def show(self, event: Event, time: float) -> None:
        """Take in an event; draw at most a few times a second."""

    @abstractmethod
    def print(self, *lines: str) -> None:
        """Whole lines, above the progress."""

    @abstractmethod
    def summarize(self, *more: str) -> None:
        """Write the summary, and `more` lines below it, if there is something to sum up."""

    @abstractmethod
    def close(self) -> None:
        """Take the progress off the screen and leave the terminal as it was. Safe to call twice."""


class Quiet(Display):
    """No progress; only lines that are printed, and that the job stands still. `--progress none`."""

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


def write_lines(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def open_display(progress: str, workers: int) -> Display:
    """`progress` is one of `job_config.PROGRESS`; `auto` is live in a terminal and plain elsewhere."""
    if progress == "none":
        return Quiet()
    if progress == "live" or (progress == "auto" and sys.stdout.isatty()):
        from shoal.watch.screen.live import Live  # noqa: PLC0415  rich is not needed, nor paid for, without a terminal

        return Live(workers)
    from shoal.watch.screen.plain import Plain  # noqa: PLC0415  it imports this module

    return Plain()
