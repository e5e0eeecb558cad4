"""Files that the script's own code empties to write them anew, found by an audit hook on `open`.

Whether several workers empty the same file is for the coordinator to see (`membership.record.truncations`). Counted is
what the script's code opens, itself or through libraries that it calls. Left out: Shoal's own files, devices and pipes,
caches, what loader processes and other children open, and what a data set writes while its samples are read. Libraries
that open files without Python are not seen, with the exception of torch.save.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import torch

from shoal.events import FileTruncated
from shoal.strategies.peers.peers import Peers

MOST_FILES = 1000  # that one worker tells of in one generation
LONGEST_PATH = 1000  # characters
OURS = str(Path(__file__).parents[2]) + os.sep
DATA = str(Path(OURS) / "data") + os.sep
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
NO_FILES = ("/dev/", "/proc/", "/sys/")
CACHE = re.compile(r"(^|[/._-])caches?([/._-]|$)|__pycache__", re.IGNORECASE)  # a folder or file that is called so


class TruncatedFiles:
    """What one worker's process empties while it is in a job."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._process = os.getpid()
        self._generation = -1
        self._seen: set[str] = set()  # in this generation, as the script has them
        self.waiting: list[FileTruncated] = []  # to be told

    def truncated(self, path: object, frame: FrameType | None) -> None:
        """A file is about to be emptied by the code in this frame. Never raises, since `open` would."""
        try:
            self._note(path, frame)
        except Exception:  # a warning that is missed costs less than a file that is not written
            return

    def _note(self, path: object, frame: FrameType | None) -> None:
        if isinstance(path, int) or os.getpid() != self._process or self._peers.is_new:
            return
        name = os.fsdecode(path)  # type: ignore[arg-type]  # what cannot be a path raises
        generation = self._peers.generation.number
        if generation != self._generation:
            self._generation, self._seen = generation, set()
        if name in self._seen or len(self._seen) >= MOST_FILES or len(name) > LONGEST_PATH:
            return
        place = script_place(frame)
        if place is None:
            return
        self._seen.add(name)
        absolute = os.path.abspath(name)  # noqa: PTH100  a Path takes several times as long
        if is_shared(absolute):
            self.waiting.append(
                FileTruncated(
                    worker=self._peers.worker,
                    generation=generation,
                    host=self._peers.generation.members[self._peers.group.rank].host,
                    path=absolute,
                    name=name,
                    place=place,
                )
            )

    def take(self) -> Sequence[FileTruncated]:
        taken, self.waiting = self.waiting, []
        return taken


def is_shared(path: str) -> bool:
    """Whether workers that write this file get into each other's way: not a device, a pipe or a part of a cache."""
    if path.startswith(NO_FILES) or CACHE.search(path) or any(part in path for part in INSTALLED):
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116  as above
    except OSError:
        return True  # not there yet


def script_place(frame: FrameType | None) -> str | None:
    """The nearest line of the script's own code; None where Shoal or a data set that is being read opens the file."""
    place = None
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind == "data" or (kind == "ours" and place is None):
            return None
        if kind == "script" and place is None:
            place = f"{frame.f_code.co_filename.rpartition(os.sep)[2]} line {frame.f_lineno}"
        frame = frame.f_back
    return place


@functools.lru_cache(maxsize=4096)
def _kind(file: str) -> str:
    """Whose code a file holds."""
    if file.startswith(OURS):
        return "data" if file.startswith(DATA) else "ours"
    is_library = file.startswith(("<", *LIBRARIES)) or any(part in file for part in INSTALLED)
    return "library" if is_library else "script"


# The hook: one per process, since Python removes none

_watching: TruncatedFiles | None = None
_is_hooked = False


def watch(files: TruncatedFiles) -> None:
    """From now on, `files` gets what this process empties."""
    global _watching, _is_hooked  # noqa: PLW0603  audit hooks are for whole processes, and stay
    _watching = files
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_opened)
        _hook_torch_save()


def unwatch() -> None:
    global _watching  # noqa: PLW0603  as above
    _watching = None


def _opened(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: called for everything that Python audits, so it looks at the event's name first."""
    if event == "open" and _watching is not None:
        path, _, flags = arguments
        # O_EXCL ("x") creates a file or fails: only one worker gets through.
        if isinstance(flags, int) and flags & os.O_TRUNC:
            _watching.truncated(path, sys._getframe(1))


def _hook_torch_save() -> None:
    """torch.save opens its file in C++, which audits nothing: watch the class that does so for it."""
    writer = getattr(torch.serialization, "_open_zipfile_writer_file", None)
    if writer is None:
        return
    original: Callable[..., None] = writer.__init__

    @functools.wraps(original)
    def opening(self: object, name: object, *arguments: object, **named: object) -> None:
        if _watching is not None:
            _watching.truncated(name, sys._getframe(1))
        original(self, name, *arguments, **named)

    writer.__init__ = opening
