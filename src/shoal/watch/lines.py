"""Files of JSON lines, read block by block while somebody may still be appending to them.

A line that is damaged, of an unknown kind or absurdly long is counted and left out; the last line counts only once its
newline is there. Memory stays small whatever the file holds. Not here: what the lines mean (`record`, `series`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

BLOCK = 1 << 18  # bytes read at once
LONGEST = 1 << 22  # bytes of a line; a longer one is no line of ours
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what decoding foreign bytes can raise


class LineFile(Generic[T]):
    """Iterate over it once; `skipped` and `problem` are whole when that is done."""

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[T]) -> None:
        self.skipped = 0  # lines that could not be read
        self.problem = ""  # why the file could not be read to its end
        self._path = path
        self._decoder = decoder

    def __iter__(self) -> Iterator[T]:
        try:
            for block in self._whole_lines():
                yield from self._decoded(block)
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = f"{self._path.name} cannot be read: {error.strerror or error}"

    def _whole_lines(self) -> Iterator[bytes]:
        """Blocks that end with a newline."""
        carried = b""  # the beginning of a line whose end is not read yet
        overlong = False  # what is carried belongs to a line that is left out
        with self._path.open("rb") as file:
            while block := file.read(BLOCK):
                end = block.rfind(b"\n") + 1
                if end == 0:
                    carried = carried[:0] if overlong else carried + block
                    overlong = overlong or len(carried) > LONGEST
                    continue
                lines = carried + block[:end]
                if overlong:
                    self.skipped += 1
                    lines = block[block.find(b"\n") + 1 : end]
                yield lines
                carried, overlong = block[end:], False

    def _decoded(self, lines: bytes) -> list[T]:
        try:
            return self._decoder.decode_lines(lines)
        except UNREADABLE:
            return self._one_by_one(lines)

    def _one_by_one(self, lines: bytes) -> list[T]:
        found: list[T] = []
        for line in lines.split(b"\n"):
            try:
                if line.strip():
                    found.append(self._decoder.decode(line))
            except UNREADABLE:
                self.skipped += 1
        return found


def last_line(path: Path, decoder: msgspec.json.Decoder[T]) -> T | None:
    """The last whole line that can be read, found without reading the rest of the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - BLOCK))
            tail = file.read(BLOCK)
    except OSError:
        return None
    for line in reversed(tail[: tail.rfind(b"\n") + 1].split(b"\n")):
        try:
            if line.strip():
                return decoder.decode(line)
        except UNREADABLE:
            continue
    return None
