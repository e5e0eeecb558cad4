"""What one process prints: its bytes into a log file, its lines to whoever shows them, the last ones kept.

No process here. Lines end with a newline. A carriage return starts its line anew, as in a terminal, so a progress bar
of the script shows its last state only. A line without an end is cut after 64 KiB, so that memory stays bounded.
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
    """Fed with what was read; lines come out of `feed` and `finish` once each."""

    def __init__(self, log: Path | None) -> None:
        """`log` None: it is kept nowhere."""
        self._path = log
        self._file: FileIO | None = None
        if log is not None:
            with contextlib.suppress(OSError):  # it is tried again with the first bytes
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
        """A disk that is full or gone costs the log, not the job; that is said once, as a line of the output."""
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
        """The line that never got its end, if there is one. Closes the log."""
        whole = [self._rest] if self._rest else []
        self._rest = b""
        if self._file is not None:
            self._file.close()
        return self._keep(whole)

    def _keep(self, lines: list[bytes]) -> tuple[str, ...]:
        shown = tuple(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines)
        self.last.extend(shown)
        return shown
