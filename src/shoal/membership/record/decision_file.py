"""The coordinator's decisions on disk, in `decisions.sqlite` of the run directory, before anybody hears of them.

Writes decisions durably, keeps in memory what a full disk does not take, and reads back what an earlier process
decided. Not here: the kinds of decisions (`decisions`), and what to announce about a disk (`storage`).
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import msgspec

from shoal.errors import ShoalError
from shoal.files import refuse_special
from shoal.membership.core.decisions import Decision, Remembered, add_up, may_wait
from shoal.membership.record.storage import Trouble

FILE_NAME = "decisions.sqlite"
BUSY_SECONDS = 0.05  # that a writer waits while another process reads the file; then it tries again later
BUSY_PATIENCE = 1.0  # seconds after which a file that is read by another process all the time is announced
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)


class DecisionFile:
    """Has one writer at a time: the run directory's lock guarantees that."""

    def __init__(self, run_dir: Path | None) -> None:
        """Without a run directory no decision is kept, and no later coordinator can go on with the job."""
        self._path = None if run_dir is None else run_dir / FILE_NAME
        self._database: sqlite3.Connection | None = None
        self._was_there = False  # the file has been opened: if it is gone, a new one would lack earlier decisions
        self._waiting: list[Decision] = []  # not on disk yet
        self._error = ""  # of the last attempt to write; empty when it succeeded
        self._is_busy = False  # the error is that another process reads the file

    @property
    def trouble(self) -> Trouble | None:
        """Why the last attempt to write failed; None where it succeeded."""
        if not self._error:
            return None
        patience = BUSY_PATIENCE if self._is_busy else 0.0
        return Trouble(file=str(self._path), error=self._error, holds_up=not self._may_wait, patience=patience)

    def read(self) -> Remembered:
        """What earlier coordinators decided. Raises ShoalError where the file cannot be read."""
        if self._path is None or not os.path.lexists(self._path):
            return Remembered()
        try:
            refuse_special(self._path)
            rows = self._open(self._path).execute("SELECT decision FROM decisions ORDER BY id").fetchall()
            return add_up(_decoder.decode(row[0]) for row in rows)
        except (sqlite3.Error, msgspec.MsgspecError, TypeError, ValueError, RecursionError, OSError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise ShoalError(
                f"the coordinator's decisions in {self._path} cannot be read: {why}; "
                "start the job anew from its newest checkpoint with --resume"
            ) from None

    def add(self, decision: Decision) -> None:
        """Queue a decision. It is on disk once `flush` has returned True."""
        if self._path is not None:
            self._waiting.append(decision)

    def flush(self) -> bool:
        """Whether all decisions that cannot wait are on disk; `trouble` says why not. The next call tries again."""
        if not self._waiting or self._path is None:
            return True
        try:
            database = self._open(self._path)
            with database:
                rows = [(_encoder.encode(decision).decode(),) for decision in self._waiting]
                database.executemany("INSERT INTO decisions (decision) VALUES (?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._error = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._is_busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            self.close()  # a database that was opened on a read-only disk would stay read-only
            return self._may_wait
        self._waiting.clear()
        self._error = ""
        return True

    @property
    def _may_wait(self) -> bool:
        return all(may_wait(decision) for decision in self._waiting)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None

    def _open(self, path: Path) -> sqlite3.Connection:
        if self._database is None:
            if self._was_there and not path.exists():
                raise FileNotFoundError(errno.ENOENT, "it was removed while the job ran")
            path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(path, timeout=BUSY_SECONDS)
            try:
                database.execute("PRAGMA journal_mode=TRUNCATE")
                database.execute("PRAGMA synchronous=FULL")
                with database:
                    database.execute(
                        "CREATE TABLE IF NOT EXISTS decisions (id INTEGER PRIMARY KEY, decision TEXT NOT NULL)"
                    )
            except BaseException:
                database.close()
                raise
            self._database = database
            self._was_there = True
        return self._database
