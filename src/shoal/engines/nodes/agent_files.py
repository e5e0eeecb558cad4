"""What an agent writes on its node, in one private folder: files that processes are brought, a copy of the script.

Everything is gone when the agent is. Paths that the launcher sends stay below this folder. Not here: which files there
are (`script_files`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from shoal.engines.nodes.agent_messages import CarriedFile, CopyFolder, FilePiece, SeenFile
from shoal.engines.nodes.script_files import is_inside
from shoal.environment import runtime_folder
from shoal.errors import WireError
from shoal.files import read_plain

PREFIX = "shoal-node-"
UNFINISHED = f".{PREFIX}"  # begins the name of a folder whose lock is not taken yet
UNFINISHED_SECONDS = 3600.0  # after which such a folder counts as left behind
LOCK = "lock"


class CopyFailed(Exception):
    """The script's folder cannot be copied; the text says why."""


class AgentFiles:
    def __init__(self) -> None:
        """Removes what killed agents of this user have left."""
        parent = runtime_folder()
        for left in (*parent.glob(f"{PREFIX}*"), *parent.glob(f"{UNFINISHED}*")):
            _sweep(left)
        made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=parent))  # mode 0700
        self._lock = (made / LOCK).open("wb")  # held as long as this process lives
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Other agents remove a folder of this name unless its lock is taken: so the folder gets the name last.
        self.folder = made.rename(parent / f"{PREFIX}{secrets.token_hex(8)}")
        self._brought: dict[str, Path] = {}  # folders, by process
        self._copy: CopyFolder | None = None
        self._missing: list[str] = []  # files of the copy that have not come

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    # Private files

    def bring(self, process: str, files: Iterable[CarriedFile]) -> dict[str, str]:
        """Write the files of a process. Returns their paths, by variable."""
        paths = {}
        folder = self._brought[process] = Path(tempfile.mkdtemp(dir=self.folder))
        for number, file in enumerate(files):
            path = folder / str(number)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(file.data)
            paths[file.variable] = str(path)
        return paths

    def forget(self, process: str) -> None:
        """The process has ended: remove its files."""
        if (folder := self._brought.pop(process, None)) is not None:
            shutil.rmtree(folder, ignore_errors=True)

    # The copy of the script's folder

    def begin_copy(self, order: CopyFolder) -> None:
        """Take what is in the node's own folder. Pieces with the other files follow."""
        for path in (order.script, *order.missing, *(file.path for file in order.files)):
            if not is_inside(path):
                raise WireError(f"a copy of the script's folder is to have a file {path!r} outside it")
        self._copy, self._missing = order, list(order.missing)
        shutil.rmtree(self.copy_folder, ignore_errors=True)
        self.copy_folder.mkdir(mode=0o700)
        for file in order.files:
            if file.path not in self._missing:
                self._take_own(Path(order.folder), file)

    def add(self, piece: FilePiece) -> None:
        if not self._missing or piece.path != self._missing[0]:
            raise WireError(f"a piece of {piece.path!r} came, which is not the file that should come next")
        try:
            with self._at(piece.path).open("ab") as file:
                file.write(piece.data)
        except OSError as error:
            raise CopyFailed(f"{piece.path}: {error.strerror}") from None
        if piece.is_last:
            del self._missing[0]

    def finished_copy(self) -> Path | None:
        """The copy's folder, once all files are there as they should be."""
        if self._copy is None or self._missing:
            return None
        for file in self._copy.files:
            self._check(file, read_plain(self._at(file.path), 1 << 40))
        return self.copy_folder

    @property
    def copy_folder(self) -> Path:
        return self.folder / "script"

    def _take_own(self, folder: Path, file: SeenFile) -> None:
        try:
            data = read_plain(folder / file.path, 1 << 40)
            self._check(file, data)
            self._at(file.path).write_bytes(data)
        except OSError as error:
            raise CopyFailed(f"{file.path}: {error.strerror}") from None

    def _check(self, file: SeenFile, data: bytes) -> None:
        if hashlib.sha256(data).digest() != file.digest:
            raise CopyFailed(f"{file.path} has changed meanwhile")

    def _at(self, path: str) -> Path:
        place = self.copy_folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def _sweep(folder: Path) -> None:
    """Remove the folder of an agent that is gone. A folder without lock or final name may be in the making."""
    with contextlib.suppress(OSError):
        found = folder.lstat()
        is_unfinished = folder.name.startswith(UNFINISHED)
        if is_unfinished and time.time() - found.st_mtime < UNFINISHED_SECONDS:
            return
        try:
            descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if is_unfinished and found.st_uid == os.geteuid():
                folder.rmdir()  # its agent was killed before it made the lock
            return
        try:
            if os.fstat(descriptor).st_uid == os.geteuid() and not folder.is_symlink():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
