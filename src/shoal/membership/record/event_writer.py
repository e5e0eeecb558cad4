"""The job's record: `events.jsonl`, `metrics.jsonl`, and the recent events in memory for late watchers.

The coordinator, or a script that runs alone, is the only writer; a resumed job appends. `bookkeeping` decides which
lines are written. Not here: the kinds of events (`shoal.events`), and reading the files back (`watch`).
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import TypeVar

import msgspec

from shoal.events import CoordinatorReturned, JobEnded, JobStarted, Record
from shoal.files import open_append, tail, whole_lines
from shoal.membership.record.bookkeeping import Before, Bookkeeping, Written
from shoal.membership.record.storage import Trouble
from shoal.steps import MetricLine

Line = TypeVar("Line")
FILE_NAME = "events.jsonl"
METRICS_NAME = "metrics.jsonl"
KEPT = 1000  # newest records, which a late watcher is shown
LAST_LINE = 1024 * 1024  # bytes at the end of the record in which its last line is looked for
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what decoding foreign bytes can raise
MOST_WAITING = 16 * 2**20  # bytes of lines that wait for a disk that cannot be written


class EventWriter:
    """Takes every event; `flush` makes lines visible to readers of the files."""

    def __init__(self, run_dir: Path | None, *, waits: bool = False) -> None:
        """`waits`: there may be a run directory later, for which lines wait (`open`)."""
        self.recent: deque[Record] = deque(maxlen=KEPT)
        last = None if run_dir is None else _last_record(run_dir / FILE_NAME)
        self.last_time = 0.0 if last is None else last.time  # of the last record that an earlier coordinator wrote
        # An earlier coordinator wrote the end of the job; this one only tells its clients.
        self._is_closed = last is not None and isinstance(last.event, JobEnded)
        self._books = Bookkeeping()
        self._run_dir = run_dir
        if run_dir is not None:
            with contextlib.suppress(OSError):  # opening the files will then fail too, which is tried again
                run_dir.mkdir(parents=True, exist_ok=True)
        self._events_file = _Lines(None if run_dir is None else run_dir / FILE_NAME, waits=waits)
        self._metrics_file = _Lines(None if run_dir is None else run_dir / METRICS_NAME, waits=waits)

    def open(self, run_dir: Path) -> int:
        """Write all that has waited, and all that comes, into this new run directory. Returns how many lines are lost,
        since too many waited."""
        return self._events_file.open(run_dir / FILE_NAME) + self._metrics_file.open(run_dir / METRICS_NAME)

    def write(self, record: Record) -> list[Record]:
        """Returns what watchers are shown: the event without its rows of steps, after events that follow from them."""
        if self._is_closed and isinstance(record.event, JobEnded):
            self.recent.append(record)
            return [record]
        self._is_closed = False
        if isinstance(record.event, CoordinatorReturned) and self._run_dir is not None:
            self._books = Bookkeeping(_written_before(self._run_dir))
        written = self._books.take(record)
        self.recent.extend(written.shown)
        self._append(written)
        return written.shown

    def flush(self) -> None:
        self._events_file.flush()
        self._metrics_file.flush()

    @property
    def troubles(self) -> list[Trouble]:
        """Files that the last attempt could not write."""
        return [each for each in (self._events_file.trouble, self._metrics_file.trouble) if each is not None]

    def close(self) -> None:
        """Write everything that is held back, even if the job's end was never noted."""
        self._append(self._books.rest())
        self._events_file.close()
        self._metrics_file.close()

    def _append(self, written: Written) -> None:
        for record in written.events:
            self._events_file.append(record)
        for line in written.metrics:
            self._metrics_file.append(line)


class _Lines:
    """A file that lines of JSON are appended to.

    While the file cannot be opened or written, lines wait and are appended later: a disk that is full for a while costs
    nothing. Beyond `MOST_WAITING` bytes lines are lost; `trouble` counts them.
    """

    def __init__(self, path: Path | None, *, waits: bool) -> None:
        self._path = path
        self._waits = waits  # for a path
        self._encoder = msgspec.json.Encoder()
        self._unwritten = bytearray()
        self._error = ""  # of the last attempt; empty when it succeeded
        self._lost = 0  # lines, since the last attempt that succeeded
        self._file: FileIO | None = None
        self.flush()

    @property
    def trouble(self) -> Trouble | None:
        return Trouble(file=str(self._path), error=self._error, lost=self._lost) if self._error else None

    def open(self, path: Path) -> int:
        """Returns how many lines are lost."""
        lost, self._path = self._lost, path
        self.flush()
        return lost

    def append(self, line: Record | MetricLine) -> None:
        if self._path is None and not self._waits:
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
        self._path, self._file, self._waits = None, None, False


def with_room(trouble: Trouble) -> Trouble:
    """The trouble with the room that its disk has left, where the disk says it."""
    try:
        disk = os.statvfs(Path(trouble.file).parent)
    except OSError:
        return trouble
    return replace(trouble, free=disk.f_bavail * disk.f_frsize)


def job_start(run_dir: Path) -> JobStarted | None:
    """How the job in a run directory was last started, according to its record."""
    found = _start_record(run_dir)
    return found.event if found is not None and isinstance(found.event, JobStarted) else None


def _start_record(run_dir: Path) -> Record | None:
    found: Record | None = None
    with contextlib.suppress(FileNotFoundError):
        for line in whole_lines(run_dir / FILE_NAME):
            if b'"job-started"' in line:
                with contextlib.suppress(*UNREADABLE):  # cut short by a crash
                    record = msgspec.json.decode(line, type=Record)
                    found = record if isinstance(record.event, JobStarted) else found
    return found


def _written_before(run_dir: Path) -> Before:
    """What an earlier coordinator of this run wrote, as far as the last megabyte of each file reaches."""
    started = _start_record(run_dir)
    began = 0.0 if started is None else started.time
    records, lines = _last_lines(run_dir / FILE_NAME, Record), _last_lines(run_dir / METRICS_NAME, MetricLine)
    return Before(
        began=None if started is None else began,
        events=[record for record in records if record.time >= began],
        metrics=[line for line in lines if line.time >= began],
    )


def _last_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Without lines that a crash cut short, and without the incomplete line at the start of the last megabyte."""
    found: list[Line] = []
    with contextlib.suppress(OSError):
        for line in tail(path, LAST_LINE).splitlines():
            with contextlib.suppress(*UNREADABLE):
                found.append(msgspec.json.decode(line, type=kind))
    return found


def _last_record(path: Path) -> Record | None:
    """None also where a crash cut the last line short."""
    try:
        lines = tail(path, LAST_LINE).splitlines()
        return msgspec.json.decode(lines[-1], type=Record) if lines else None
    except (OSError, *UNREADABLE):
        return None


def _is_torn(path: Path) -> bool:
    """Whether a crash cut the last line short, so that the next line needs a newline before it."""
    try:
        return tail(path, 1) not in (b"", b"\n")
    except OSError:
        return False
