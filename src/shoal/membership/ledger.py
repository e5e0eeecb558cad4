"""The coordinator's decisions on disk, in `decisions.sqlite` of the run directory, before anybody hears of them.

Covers writing durably, waiting for a disk that is full, and reading back what an earlier process decided. Which
decisions there are is in `decisions`.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import msgspec

from shoal.errors import ShoalError
from shoal.membership.decisions import Decision, Remembered, add_up, may_wait

FILE_NAME = "decisions.sqlite"
BUSY_SECONDS = 0.05  # that a writer waits for somebody who reads the file; then it tries again later
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)


class Ledger:
    """One writer at a time: the run directory's lock sees to that."""

    def __init__(self, run_dir: Path | None) -> None:
        """Without a run directory nothing is kept, and nothing can be gone on with."""
        self._path = None if run_dir is None else run_dir / FILE_NAME
        self._database: sqlite3.Connection | None = None
        self._waiting: list[Decision] = []  # that are not on disk yet
        self._is_failing = False

    def read(self) -> Remembered:
        """What was decided before this process. A ShoalError where the file cannot be understood."""
        if self._path is None or not self._path.exists():
            return Remembered()
        try:
            rows = self._open(self._path).execute("SELECT decision FROM decisions ORDER BY id").fetchall()
            return add_up(_decoder.decode(row[0]) for row in rows)
        except (sqlite3.Error, msgspec.MsgspecError, TypeError) as error:
            raise ShoalError(
                f"the coordinator's decisions in {self._path} cannot be read: {error}; "
                "start the job anew from its newest checkpoint with --resume"
            ) from None

    def add(self, decision: Decision) -> None:
        """Nothing is on disk before `flush` has returned True."""
        if self._path is not None:
            self._waiting.append(decision)

    def flush(self) -> bool:
        """Whether all decisions that cannot wait are on disk.

        Where they cannot be written that is said once, and tried again at the next.
        """
        if not self._waiting or self._path is None:
            return True
        try:
            database = self._open(self._path)
            with database:
                rows = [(_encoder.encode(decision).decode(),) for decision in self._waiting]
                database.executemany("INSERT INTO decisions (decision) VALUES (?)", rows)
        except (sqlite3.Error, OSError) as error:
            if not self._is_failing:
                self._is_failing = True
                sys.stderr.write(f"shoal: {self._path} cannot be written: {error}; decisions wait until it can be\n")
            return all(may_wait(decision) for decision in self._waiting)
        self._waiting.clear()
        self._is_failing = False
        return True

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None

    def _open(self, path: Path) -> sqlite3.Connection:
        if self._database is None:
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
        return self._database
