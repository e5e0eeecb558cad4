"""The job's record: `events.jsonl`, `metrics.jsonl`, and the recent events in memory for late watchers.

The coordinator is the only writer; a job that is resumed appends. Which lines there are is decided in `thinning` and
`metrics`. Not here: which events there are (`shoal.events`), and reading the files back.
"""

from __future__ import annotations

import contextlib
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
from shoal.files import open_append, tail, whole_lines
from shoal.membership.metrics import MetricLine, Metrics
from shoal.membership.storage import Trouble
from shoal.membership.thinning import Thinning

FILE_NAME = "events.jsonl"
METRICS_NAME = "metrics.jsonl"
KEPT = 1000  # records that a watcher that comes late is shown
LAST_LINE = 1024 * 1024  # bytes from the end of the record in which its last line is looked for
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what decoding foreign bytes can raise
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
            with contextlib.suppress(OSError):  # opening the files will fail too, and is tried again
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

    @property
    def troubles(self) -> list[Trouble]:
        """Files that could not be written at the last try."""
        return [each for each in (self._events_file.trouble, self._metrics_file.trouble) if each is not None]

    def close(self) -> None:
        """Also of a job whose end was never written: nothing is held back."""
        self._write_metrics(self._metrics.finish())
        self._write_events(self._thinning.rest())
        self._events_file.close()
        self._metrics_file.close()

    def _last_step(self) -> int:
        """The last one that an earlier coordinator of this job has written a line of; -1 for none."""
        with contextlib.suppress(OSError, IndexError, *UNREADABLE):
            if self._metrics_path is not None:
                whole = tail(self._metrics_path, LAST_LINE).rpartition(b"\n")[0]  # a crash may have torn the last line
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

    While it cannot be opened or written, lines wait, and go where the file ends once it can be: a disk that was full
    for a while costs nothing. Beyond `MOST_WAITING` lines are lost, which `trouble` counts.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._unwritten = bytearray()
        self._error = ""  # of the last try; empty when that went well
        self._lost = 0  # lines, since the last try that went well
        self._file: FileIO | None = None
        self.flush()

    @property
    def trouble(self) -> Trouble | None:
        return Trouble(file=str(self._path), error=self._error, lost=self._lost) if self._error else None

    def append(self, line: Record | MetricLine) -> None:
        if self._path is None:
            return
        data = self._encoder.encode(line)
        if len(self._unwritten) + len(data) > MOST_WAITING and not isinstance(getattr(line, "event", None), JobEnded):
            self._lost += 1
            return
        self._unwritten += data
        self._unwritten += b"\n"

    def flush(self) -> None:
        if self._path is None:
            return
        try:
            if self._file is None:
                self._file = open_append(self._path)
                if _is_torn(self._path):
                    self._unwritten[:0] = b"\n"
            while self._unwritten:
                del self._unwritten[: self._file.write(self._unwritten)]
        except OSError as error:
            self._error = error.strerror or str(error)
        else:
            self._error, self._lost = "", 0

    def close(self) -> None:
        self.flush()
        self._unwritten.clear()
        if self._file is not None:
            self._file.close()
        self._path = self._file = None


def job_start(run_dir: Path) -> JobStarted | None:
    """How the job in a run directory was last started, by its record."""
    found: JobStarted | None = None
    with contextlib.suppress(FileNotFoundError):
        for line in whole_lines(run_dir / FILE_NAME):
            if b'"job-started"' in line:
                with contextlib.suppress(*UNREADABLE):
                    event = msgspec.json.decode(line, type=Record).event
                    found = event if isinstance(event, JobStarted) else found
    return found


def _is_closed(path: Path) -> bool:
    """Whether the last line is the end of a job."""
    try:
        lines = tail(path, LAST_LINE).splitlines()
        return bool(lines) and isinstance(msgspec.json.decode(lines[-1], type=Record).event, JobEnded)
    except (OSError, *UNREADABLE):
        return False


def _is_torn(path: Path) -> bool:
    """Whether a crash has cut the last line short, so that the next one must not be joined to it."""
    try:
        return tail(path, 1) not in (b"", b"\n")
    except OSError:
        return False
