"""New tokens, and reading a token's file: a small plain file of this user that nobody else can read.

Whoever holds a job's token can run code in it, so a file that others can read is refused rather than used: its token
is no secret any more. So is one of another user, who could lead this process into a job of theirs. Not here: making
such files (`cli.token_file`).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

MOST_BYTES = 4096  # many times any token


class TokenFileError(Exception):
    """The text goes on after the file's name: 'is empty'."""


class NoTokenFile(TokenFileError):
    """There is none, or what is there is something else: another one is meant."""


def new_token() -> str:
    return secrets.token_hex(32)


def read_token(path: Path) -> str:
    """The token in a file. Never waits, whatever the file is."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise NoTokenFile("is not there") from None
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
        raise NoTokenFile("is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise NoTokenFile("is no plain file")
    if found.st_uid != os.geteuid():
        raise TokenFileError(
            f"belongs to another user (number {found.st_uid}), who could lead you into another job; use a private copy "
            "of a token that you trust"
        )
    if found.st_mode & 0o077:
        raise TokenFileError(
            f"can be read or changed by others (mode {stat.S_IMODE(found.st_mode):04o}); make it private with "
            f"`chmod 600 {path}`, and if others may have read it start the job or group anew, with another token"
        )


def _text_of(data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise NoTokenFile(f"has more than {MOST_BYTES} bytes, where a token has one line")
    try:
        token = data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise NoTokenFile("holds no plain text") from None
    if not token:
        raise NoTokenFile("is empty, where it should hold a token on one line")
    return token


def _trouble(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "may not be read by this user; only who started the job or group may, so use a private copy of it"
    if error.errno == errno.ELOOP:
        return "is a link that leads nowhere"
    return f"cannot be read ({error.strerror})"
