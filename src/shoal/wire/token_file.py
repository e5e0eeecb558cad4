"""New tokens, and reading a token's file: a small plain file of this user that nobody else can read.

Anybody who holds a job's token can run code in the job, so a file that others can read is refused: its token is no
secret any more. A file of another user is refused too: that user could lead this process into another job. Not here:
making such files (`disk.job_token`).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

MOST_BYTES = 4096  # many times any token

# What people are told about a token's file. Each text follows the file's name, and tests refer to it.

MISSING = "is not there"
FOLDER = "is a folder"
NOT_PLAIN = "is no plain file"
TOO_LONG = f"has more than {MOST_BYTES} bytes, where a token has one line"
NO_TEXT = "holds no plain text"
EMPTY = "is empty, where it should hold a token on one line"
NOT_READABLE = "may not be read by this user, only by the one who started the job or group; use a private copy of it"
DEAD_LINK = "is a link that leads nowhere"


def anothers(user: int) -> str:
    return (
        f"belongs to another user (number {user}), who could lead you into another job; use a private copy "
        "of a token that you trust"
    )


def readable_by_others(mode: int, path: Path) -> str:
    return (
        f"can be read or changed by others (mode {mode:04o}); make it private with "
        f"`chmod 600 {path}`, and if others may have read it start the job or group anew, with another token"
    )


class TokenFileError(Exception):
    """The message follows the file's name: 'is empty'."""


class NoTokenFile(TokenFileError):
    """The path names no token's file, so the user probably meant another one."""


def new_token() -> str:
    return secrets.token_hex(32)


def read_token(path: Path) -> str:
    """The token in a file. Never blocks, even if the file is a pipe or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise NoTokenFile(MISSING) from None
    except OSError as error:
        raise TokenFileError(_trouble(error)) from None
    try:
        _refuse(os.fstat(descriptor), path)
        data = os.read(descriptor, MOST_BYTES + 1)
    except OSError as error:
        raise TokenFileError(_trouble(error)) from None
    finally:
        os.close(descriptor)
    return _text_of(data)


def _refuse(found: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise NoTokenFile(FOLDER)
    if not stat.S_ISREG(found.st_mode):
        raise NoTokenFile(NOT_PLAIN)
    if found.st_uid != os.geteuid():
        raise TokenFileError(anothers(found.st_uid))
    if found.st_mode & 0o077:
        raise TokenFileError(readable_by_others(stat.S_IMODE(found.st_mode), path))


def _text_of(data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise NoTokenFile(TOO_LONG)
    try:
        token = data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise NoTokenFile(NO_TEXT) from None
    if not token:
        raise NoTokenFile(EMPTY)
    return token


def _trouble(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return NOT_READABLE
    if error.errno == errno.ELOOP:
        return DEAD_LINK
    return f"cannot be read ({error.strerror})"
