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

from shoal.wire import texts
from shoal.wire.texts import MOST_BYTES


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
        raise NoTokenFile(texts.MISSING) from None
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
        raise NoTokenFile(texts.FOLDER)
    if not stat.S_ISREG(found.st_mode):
        raise NoTokenFile(texts.NOT_PLAIN)
    if found.st_uid != os.geteuid():
        raise TokenFileError(texts.anothers(found.st_uid))
    if found.st_mode & 0o077:
        raise TokenFileError(texts.readable_by_others(stat.S_IMODE(found.st_mode), path))


def _text_of(data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise NoTokenFile(texts.TOO_LONG)
    try:
        token = data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise NoTokenFile(texts.NO_TEXT) from None
    if not token:
        raise NoTokenFile(texts.EMPTY)
    return token


def _trouble(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return texts.NOT_READABLE
    if error.errno == errno.ELOOP:
        return texts.DEAD_LINK
    return texts.not_read(error.strerror)
