"""The job's record: every event as a line of `events.jsonl`, and the recent ones in memory for late watchers.

The coordinator is the only writer. Not here: which events there are (`shoal.events`), and reading the file back.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from shoal.events import Record

FILE_NAME = "events.jsonl"
KEPT = 1000  # records that a watcher that comes late is shown


class Journal:
    """Appends lines; `flush` makes them visible to readers of the file.

    A full disk ends the record, not the job: the loss is said once, on stderr.
    """

    def __init__(self, run_dir: Path | None) -> None:
        self.recent: deque[Record] = deque(maxlen=KEPT)
        self._file: BinaryIO | None = None
        if run_dir is not None:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = (run_dir / FILE_NAME).open("ab")

    def write(self, record: Record) -> None:
        self.recent.append(record)
        if self._file is not None:
            with self._giving_up():
                self._file.write(msgspec.json.encode(record) + b"\n")

    def flush(self) -> None:
        if self._file is not None:
            with self._giving_up():
                self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            with self._giving_up():
                self._file.close()

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path, self._file = getattr(self._file, "name", FILE_NAME), None
            sys.stderr.write(
                f"shoal: {path} cannot be written any more: {error.strerror or error}; the job goes on without it\n"
            )
