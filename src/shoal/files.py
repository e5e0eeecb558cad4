"""Opening files that others may have put there: a run directory may hold anything in the place of a record.

Opening a FIFO waits for its other end, a device may never end, and a line may be as long as the disk. So nothing here
waits, and nothing reads more than a given limit. Anything but a plain file is an `OSError` that says so. Not here:
tokens, which have rules of their own (`wire.token_file`).
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 1 << 18  # bytes read at once
MOST_TOML = 1 << 20  # bytes of a file of settings
LONGEST_LINE = 1 << 22  # bytes; a longer line is not ours
LONGEST_GAP = 1 << 26  # bytes without a line end after which reading stops
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_plain(path: Path) -> io.FileIO:
    """Open for reading, unbuffered. Raises `OSError` if it is missing, may not be read, or is no plain file."""
    refuse_special(path)  # before opening it, which has effects on some devices
    file = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    try:
        _refuse(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def open_append(path: Path) -> io.FileIO:
    """Open for appending, and make the file if it is missing. Raises `OSError` as above, but a device is allowed."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO without a reader, or a socket
            refuse_special(path)
        raise
    file = io.FileIO(descriptor, "ab")
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        file.close()
        raise _special("a FIFO", path)
    os.set_blocking(descriptor, True)
    return file


def read_plain(path: Path, most: int) -> bytes:
    """All of a file. Raises `OSError` if it has more than `most` bytes."""
    with open_plain(path) as file:
        data = bytearray()
        while len(data) <= most and (block := file.read(min(BLOCK, most + 1 - len(data)))):
            data += block
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes, which no such file has", str(path))
    return bytes(data)


def read_toml(path: Path) -> dict[str, Any]:
    """Raises `OSError` as above, `ValueError` as `toml_of`."""
    return toml_of(read_plain(path, MOST_TOML).decode("utf-8"))


def toml_of(text: str) -> dict[str, Any]:
    """Raises `ValueError` if it is no TOML, has numbers of thousands of digits, or is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def whole_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """The lines of a file from byte `start` on, with their ends. Skips lines that are too long or have no end."""
    carried = b""
    gap = 0  # bytes so far of a line that is skipped
    with open_plain(path) as file:
        file.seek(start)
        while (block := file.read(BLOCK)) and gap <= LONGEST_GAP:
            *lines, carried = (carried + block).split(b"\n")
            for line in lines:
                if not gap:
                    yield line + b"\n"
                gap = 0
            if len(carried) > LONGEST_LINE or gap:
                gap += len(carried)
                carried = b""


def tail(path: Path, size: int) -> bytes:
    """The last bytes of a file, `size` of them at most."""
    with open_plain(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read(size)


def refuse_special(path: Path) -> None:
    """Raises `OSError` unless the path is a plain file, or a link to one."""
    try:
        _refuse(path.stat().st_mode, path)
    except FileNotFoundError:
        if path.is_symlink():
            raise FileNotFoundError(errno.ENOENT, "it is a link that leads nowhere", str(path)) from None
        raise


def _refuse(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise _special(_KINDS.get(stat.S_IFMT(mode), "something else"), path)


def _special(kind: str, path: Path) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}, no plain file", str(path))
