"""The job's record: `events.jsonl`, `metrics.jsonl`, and the recent events in memory for late watchers.

The coordinator is the only writer; a job that is resumed appends. Which lines there are is decided in `thinning` and
`metrics`. Not here: which events there are (`shoal.events`), and reading the files back.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from io import FileIO
from pathlib import Path

import msgspec

from shoal.events import (
    CoordinatorReturned,
    GenerationFormed,
    JobEnded,
    JobStarted,
    Record,
    StepsApplied,
    WorkerReturned,
)
from shoal.membership.metrics import MetricLine, Metrics
from shoal.membership.thinning import Thinning

FILE_NAME = "events.jsonl"
METRICS_NAME = "metrics.jsonl"
KEPT = 1000  # records that a watcher that comes late is shown
LAST_LINE = 1024 * 1024  # bytes from the end of the record in which its last line is looked for
MOST_WAITING = 16 * 2**20  # bytes of lines that wait for a disk that cannot be written


class Journal:
    """Takes every event; `flush` makes lines visible to readers of the files."""

    def __init__(self, run_dir: Path | None) -> None:
        self.recent: deque[Record] = deque(maxlen=KEPT)
        # The last coordinator had written the end of the job, and another one only says so again.
        self._is_closed = run_dir is not None and _is_closed(run_dir / FILE_NAME)
        self._thinning = Thinning()
        self._metrics = Metrics()
        self._metrics_path = None if run_dir is None else run_dir / METRICS_NAME
        if run_dir is not None:
            run_dir.mkdir(parents=True, exist_ok=True)
        self._events_file = _Lines(None if run_dir is None else run_dir / FILE_NAME)
        self._metrics_file = _Lines(self._metrics_path)

    def write(self, record: Record) -> Record:
        """Returns the record as watchers are shown it: rows of steps go into the metrics alone."""
        event = record.event
        if self._is_closed and isinstance(event, JobEnded):
            self.recent.append(record)
            return record
        self._is_closed = False
        if isinstance(event, StepsApplied):
            self._write_metrics(self._metrics.add(event, record.time))
            record = Record(time=record.time, event=msgspec.structs.replace(event, rows=()))
        elif isinstance(event, CoordinatorReturned):
            self._metrics = Metrics(last_step=self._last_step())
        elif isinstance(event, WorkerReturned):
            self._metrics.returned(event.worker)
        elif isinstance(event, GenerationFormed):
            self._write_metrics(self._metrics.regroup(event.workers))
        elif isinstance(event, JobEnded):
            self._write_metrics(self._metrics.finish())
        self.recent.append(record)
        self._write_events(self._thinning.take(record))
        return record

    def flush(self) -> None:
        self._events_file.flush()
        self._metrics_file.flush()

    def close(self) -> None:
        """Also of a job whose end was never written: nothing is held back."""
        self._write_metrics(self._metrics.finish())
        self._write_events(self._thinning.rest())
        self._events_file.close()
        self._metrics_file.close()

    def _last_step(self) -> int:
        """The last one that an earlier coordinator of this job has written a line of; -1 for none."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, IndexError):
            if self._metrics_path is not None:
                whole = _tail(self._metrics_path).rpartition(b"\n")[0]  # a crash may have torn the last line
                return msgspec.json.decode(whole.splitlines()[-1], type=MetricLine).step
        return -1

    def _write_events(self, records: list[Record]) -> None:
        for record in records:
            self._events_file.append(record)

    def _write_metrics(self, lines: list[MetricLine]) -> None:
        for line in lines:
            self._metrics_file.append(line)


class _Lines:
    """A file that lines of JSON are appended to.

    While it cannot be written, lines wait, and go where the file ends once it can be again: a disk that was full for a
    while costs nothing. The trouble is said on stderr when it begins, and so is a loss of lines beyond `MOST_WAITING`.
    """

    def __init__(self, path: Path | None) -> None:
        self._encoder = msgspec.json.Encoder()
        self._unwritten = bytearray()
        self._is_failing = False
        self._is_dropping = False
        self._file: FileIO | None = None
        if path is not None:
            if _is_torn(path):
                self._unwritten += b"\n"
            self._file = path.open("ab", buffering=0)

    def append(self, line: Record | MetricLine) -> None:
        if self._file is None:
            return
        data = self._encoder.encode(line)
        if len(self._unwritten) + len(data) > MOST_WAITING and not isinstance(getattr(line, "event", None), JobEnded):
            if not self._is_dropping:
                self._is_dropping = True
                sys.stderr.write(f"shoal: lines for {self._file.name} are lost: too many wait to be written\n")
            return
        self._unwritten += data
        self._unwritten += b"\n"

    def flush(self) -> None:
        try:
            while self._unwritten and self._file is not None:
                del self._unwritten[: self._file.write(self._unwritten)]
            self._is_failing = self._is_dropping = False
        except OSError as error:
            if not self._is_failing and self._file is not None:
                self._is_failing = True
                sys.stderr.write(
                    f"shoal: {self._file.name} cannot be written: {error.strerror or error}; "
                    "the job goes on, and what is to be written waits until it can be\n"
                )

    def close(self) -> None:
        self.flush()
        self._unwritten.clear()
        if self._file is not None:
            self._file.close()
        self._file = None


def job_start(run_dir: Path) -> JobStarted | None:
    """How the job in a run directory was last started, by its record."""
    found: JobStarted | None = None
    with contextlib.suppress(FileNotFoundError), (run_dir / FILE_NAME).open("rb") as file:
        for line in file:
            if b'"job-started"' in line:
                with contextlib.suppress(msgspec.MsgspecError):  # cut short by a crash
                    event = msgspec.json.decode(line, type=Record).event
                    found = event if isinstance(event, JobStarted) else found
    return found


def _tail(path: Path) -> bytes:
    """The last lines of a file; the last one may be torn."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_LINE))
        return file.read(LAST_LINE)


def _is_closed(path: Path) -> bool:
    """Whether the last line is the end of a job."""
    try:
        lines = _tail(path).splitlines()
        return bool(lines) and isinstance(msgspec.json.decode(lines[-1], type=Record).event, JobEnded)
    except (FileNotFoundError, msgspec.MsgspecError):
        return False


def _is_torn(path: Path) -> bool:
    """Whether a crash has cut the last line short, so that the next one must not be joined to it."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except FileNotFoundError:
        return False
