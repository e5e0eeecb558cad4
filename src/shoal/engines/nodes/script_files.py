"""The Python files of a script's folder: which there are, with their digests, and how two machines' differ.

Counted are the script and all files named *.py in its folder and below. Left out are folders whose name begins with a
dot, `__pycache__`, and virtual environments. Beyond `MOST_FILES` files or `MOST_FOLDER_BYTES`
(`agent_messages`) nothing travels. Not here: sending files (`node_engine`) and writing them (`agent_files`).
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from shoal.engines import texts
from shoal.engines.nodes.agent_messages import (
    MOST_FILES,
    MOST_FOLDER_BYTES,
    PIECE_BYTES,
    CopyFolder,
    FilePiece,
    FolderSeen,
    SeenFile,
)
from shoal.errors import UsageError
from shoal.files import read_plain

LEFT_OUT = frozenset({"__pycache__", "site-packages", "node_modules"})
ENVIRONMENT = "pyvenv.cfg"  # marks a virtual environment


class TooLarge(Exception):
    """The folder has more files, or more bytes in them, than travel."""


@dataclass(frozen=True)
class ScriptFolder:
    """The script's folder on the launcher's machine, as it was when the job began."""

    path: Path  # absolute
    script: str  # relative to it
    contents: dict[str, bytes]  # by path with /

    @cached_property
    def files(self) -> tuple[SeenFile, ...]:
        return tuple(SeenFile(path, _digest(data)) for path, data in self.contents.items())

    def missing_there(self, seen: tuple[SeenFile, ...]) -> list[str]:
        """Paths of files that are missing on the node, or differ there."""
        there = {file.path: file.digest for file in seen}
        return [file.path for file in self.files if there.get(file.path) != file.digest]

    def differing(self, seen: tuple[SeenFile, ...]) -> list[str]:
        """The same, with files that only the node has: Python might import them."""
        return sorted({*self.missing_there(seen), *({file.path for file in seen} - self.contents.keys())})

    def pieces(self, paths: Iterable[str]) -> Iterator[FilePiece]:
        """The bytes of these files, each piece made when it is asked for."""
        for path in paths:
            data = self.contents[path]
            starts = range(0, max(1, len(data)), PIECE_BYTES)
            for start in starts:
                yield FilePiece(path=path, data=data[start : start + PIECE_BYTES], is_last=start == starts[-1])


@dataclass(frozen=True)
class NodeFolder:
    """The script's folder on a node."""

    path: str
    is_shared: bool = False  # it is the launcher's own, so that a difference is a mistake


def compare(own: ScriptFolder, there: NodeFolder, seen: FolderSeen, node: str) -> CopyFolder | str | None:
    """None: processes can use the folder on the node. Otherwise order a copy, or say why the node cannot be used."""
    differing = own.differing(seen.files) if seen.is_there else list(own.contents)
    if not differing:
        return None
    if there.is_shared and not seen.is_there:
        return texts.shared_folder_missing(node, there.path)
    if there.is_shared:
        return texts.shared_folder_differs(node, there.path, differing)
    missing = tuple(own.missing_there(seen.files))
    return CopyFolder(folder=there.path, script=own.script, files=own.files, missing=missing)


def read_folder(script: Path) -> ScriptFolder:
    """The folder that a script is in. Raises `UsageError` if it cannot be read or is too large to travel."""
    return read_below(script.absolute().parent, script.absolute())


def read_below(folder: Path, script: Path) -> ScriptFolder:
    """A folder somewhere in which the script is; both absolute. Raises `UsageError` like `read_folder`."""
    name = script.relative_to(folder).as_posix()
    try:
        contents = read_all(folder, name)
    except TooLarge:
        raise UsageError(texts.folder_too_large(str(folder), MOST_FILES, MOST_FOLDER_BYTES >> 20)) from None
    except OSError as error:
        raise UsageError(texts.folder_unreadable(str(folder), error.strerror or error)) from None
    return ScriptFolder(folder, name, contents)


def seen_in(folder: Path, script: str) -> tuple[SeenFile, ...]:
    """For an agent. Raises `TooLarge` or `OSError`."""
    return tuple(SeenFile(path, _digest(data)) for path, data in read_all(folder, script).items())


def read_all(folder: Path, script: str) -> dict[str, bytes]:
    """By path, in order."""
    found: dict[str, bytes] = {}
    room = MOST_FOLDER_BYTES
    for path in _paths(folder, script):
        if len(found) == MOST_FILES:
            raise TooLarge
        try:
            found[path] = read_plain(folder / path, room)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise TooLarge from None
            raise
        room -= len(found[path])
    return found


def _paths(folder: Path, script: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _counts(Path(place, name)))
        for name in sorted(names):
            path = Path(place, name).relative_to(folder).as_posix()
            if (name.endswith(".py") and Path(place, name).is_file()) or path == script:
                yield path


def _counts(folder: Path) -> bool:
    is_left_out = folder.name.startswith(".") or folder.name in LEFT_OUT
    return not is_left_out and not (folder / ENVIRONMENT).exists()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def is_inside(path: str) -> bool:
    """Whether a path that somebody sent stays below the folder it is relative to."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path
