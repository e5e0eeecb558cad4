"""The job's record: every event as a line of `events.jsonl`, and the recent ones in memory for late watchers.

The coordinator is the only writer. Not here: which events there are (`shoal.events`), and reading the file back.
"""

from __future__ import annotations

import sys
from collections import deque
from io import FileIO
from pathlib import Path

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
        self._unwritten = bytearray()
        self._file: FileIO | None = None
        if run_dir is not None:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = (run_dir / FILE_NAME).open("ab", buffering=0)

    def write(self, record: Record) -> None:
        self.recent.append(record)
        if self._file is not None:
            self._unwritten += msgspec.json.encode(record) + b"\n"

    def flush(self) -> None:
        try:
            while self._unwritten and self._file is not None:
                del self._unwritten[: self._file.write(self._unwritten)]
        except OSError as error:
            where = "" if self._file is None else self._file.name
            self._drop()
            sys.stderr.write(
                f"shoal: {where} cannot be written any more: {error.strerror or error}; the job goes on without it\n"
            )

    def close(self) -> None:
        self.flush()
        self._drop()

    def _drop(self) -> None:
        self._unwritten.clear()
        if self._file is not None:
            self._file.close()
        self._file = None
