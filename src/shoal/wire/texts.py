"""What people are told about a token's file. Each text follows the file's name, and tests refer to it."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 4096  # of a token's file: many times any token

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


def not_read(why: str | None) -> str:
    return f"cannot be read ({why})"
