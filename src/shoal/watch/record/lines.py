"""Files of JSON lines, read block by block while somebody may still be appending to them.

A line that is damaged, of an unknown kind or absurdly long is counted and left out; the last line counts only once its
newline is there. Memory stays small whatever the file holds. Not here: what the lines mean (`record`, `series`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from shoal.files import BLOCK, LONGEST_GAP, open_plain, tail
from shoal.files import LONGEST_LINE as LONGEST

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what decoding foreign bytes can raise


class LineFile(Generic[T]):
    """Iterate over it once; after that `skipped` and `problem` are complete."""

    def __init__(
        self, path: Path, decoder: msgspec.json.Decoder[T], is_plausible: Callable[[T], bool] | None = None
    ) -> None:
        """Lines that are not plausible count as damaged too."""
        self.skipped = 0  # lines that could not be read
        self.problem = ""  # why the file could not be read to its end
        self._path = path
        self._decoder = decoder
        self._is_plausible = is_plausible

    def __iter__(self) -> Iterator[T]:
        try:
            for block in self._whole_lines():
                yield from self._sorted_out(self._decoded(block))
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = f"{self._path.name} cannot be read: {error.strerror or error}"

    def _whole_lines(self) -> Iterator[bytes]:
        """Blocks that end with a newline."""
        carried = b""  # the beginning of a line whose end is not read yet
        overlong = False  # `carried` belongs to a line that is left out
        gap = 0  # bytes since the last end of a line
        with open_plain(self._path) as file:
            while block := file.read(BLOCK):
                end = block.rfind(b"\n") + 1
                if end == 0:
                    carried = carried[:0] if overlong else carried + block
                    overlong = overlong or len(carried) > LONGEST
                    gap += len(block)
                    if gap > LONGEST_GAP:
                        raise OSError(errno.EFBIG, "it goes on without the end of a line", str(self._path))
                    continue
                gap = 0
                lines = carried + block[:end]
                if overlong:
                    self.skipped += 1
                    lines = block[block.find(b"\n") + 1 : end]
                yield lines
                carried, overlong = block[end:], False

    def _sorted_out(self, found: list[T]) -> list[T]:
        if self._is_plausible is None:
            return found
        kept = [each for each in found if self._is_plausible(each)]
        self.skipped += len(found) - len(kept)
        return kept

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
        end = tail(path, BLOCK)
    except OSError:
        return None
    for line in reversed(end[: end.rfind(b"\n") + 1].split(b"\n")):
        try:
            if line.strip():
                return decoder.decode(line)
        except UNREADABLE:
            continue
    return None
