"""Progress as plain lines, for files and pipes: one every couple of seconds, and one for each notice."""

from __future__ import annotations

import math

from shoal.events import Event, StepsApplied
from shoal.watch import server_words
from shoal.watch.board import Board
from shoal.watch.screen.display import Display, write_lines
from shoal.watch.screen.notices import notices
from shoal.watch.screen.summary import has_something, summary_lines
from shoal.watch.wording import progress_parts

INTERVAL = 2.0  # seconds between progress lines, by the clock of the events
SERVERS_INTERVAL = 10.0  # seconds between lines about parameter servers


class Plain(Display):
    def __init__(self) -> None:
        self.board = Board()
        self._last_line: float | None = None  # time of the last progress line
        self._last_serving = -math.inf  # and of the last about servers

    def show(self, event: Event, time: float) -> None:
        told = notices(self.board, event, time)
        self.board = self.board.apply(event, time)
        if told:
            write_lines(told)
        elif isinstance(event, StepsApplied) and (self._last_line is None or time - self._last_line >= INTERVAL):
            self._last_line = time
            write_lines([", ".join(progress_parts(self.board)), *self._serving(time)])

    def _serving(self, time: float) -> list[str]:
        """A line about the servers, more rarely."""
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
