"""Names of files in a store. Names from outside, in a manifest or a message, must not lead out of the store."""

from __future__ import annotations

MAX_NAME = 1024  # characters; object stores allow no longer keys


def checked_parts(name: str) -> tuple[str, ...]:
    """A name's parts, each a plain name that is not hidden. ValueError for anything else."""
    parts = tuple(name.split("/"))
    if len(name) > MAX_NAME or not all(is_plain(part) for part in parts):
        raise ValueError(f"{name[:MAX_NAME]!r} is no name of a file in a store")
    return parts


def is_plain(part: str) -> bool:
    """Whether it can be a file's name. Hidden names are reserved for files that a store is writing."""
    return bool(part) and part[0] != "." and part.isprintable() and not set(part) & {"/", "\\"}
