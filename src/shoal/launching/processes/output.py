"""The output of one process: bytes go to a log file, lines to the caller, and the last lines are kept.

No process here. Lines end with a newline. After a carriage return a line starts again, as in a terminal, so that a
progress bar shows only its last state. A line without an end is cut after 64 KiB, so that memory stays bounded.
"""

from __future__ import annotations

import contextlib
from collections import deque
from io import FileIO
from pathlib import Path

from shoal.files import open_append

LAST_LINES = 30
LONGEST_LINE = 64 * 1024  # bytes


class Output:
    """Takes the bytes that were read; `feed` and `finish` return each line once."""

    def __init__(self, log: Path | None) -> None:
        """`log` is None if the output is not kept."""
        self._path = log
        self._file: FileIO | None = None
        if log is not None:
            with contextlib.suppress(OSError):  # the first bytes try again
                self._file = open_append(log)
        self._logs = log is not None  # until writing fails
        self._rest = b""
        self.last: deque[str] = deque(maxlen=LAST_LINES)

    def feed(self, data: bytes) -> tuple[str, ...]:
        """Lines that `data` completes."""
        notice = self._log(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        return self._keep(whole + notice)

    def _log(self, data: bytes) -> list[bytes]:
        """A disk that is full or gone costs the log, not the job; one line of the output says so."""
        if not self._logs or self._path is None:
            return []
        try:
            if self._file is None:
                self._file = open_append(self._path)
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._logs = False
            return [f"(no more is written to {self._path}: {error.strerror})".encode()]
        return []

    def finish(self) -> tuple[str, ...]:
        """The last line, if it has no end. Closes the log."""
        whole = [self._rest] if self._rest else []
        self._rest = b""
        if self._file is not None:
            self._file.close()
        return self._keep(whole)

    def _keep(self, lines: list[bytes]) -> tuple[str, ...]:
        shown = tuple(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines)
        self.last.extend(shown)
        return shown
