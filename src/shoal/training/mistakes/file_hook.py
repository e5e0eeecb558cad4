"""An audit hook that sees which files the process empties, and whose code does so. Imports no torch: it comes early.

Counted is what the script's code opens, itself or through libraries that it calls. Left out: Shoal's own files, devices
and pipes, caches, what child processes open, and what a data set writes while its samples are read. Libraries that open
files without Python are not seen, with the exceptions of torch.save and safetensors. What a script empties before
`shoal.main` waits in `early` until there is a job to tell of it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import stat
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

MOST_EARLY = 100  # files that wait for `shoal.main`
OURS = str(Path(__file__).parents[2]) + os.sep
DATA = str(Path(OURS) / "data") + os.sep
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
SAFETENSORS, SERIALIZE = "safetensors", "serialize_file"  # the package, and its function that writes a file
NO_FILES = ("/dev/", "/proc/", "/sys/")
CACHE = re.compile(r"(^|[/._-])caches?([/._-]|$)|__pycache__", re.IGNORECASE)  # a folder or file that is called so


class Watcher(Protocol):
    def truncated(self, path: object, frame: FrameType | None) -> None:
        """A file is about to be emptied by the code in this frame. Never raises, since `open` would."""


@dataclass(frozen=True)
class EarlyFile:
    path: str  # absolute
    name: str  # as the script has it
    place: str  # file and line of the script


class EarlyFiles:
    """What a worker's script empties before it comes to `shoal.main`."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.found: dict[str, EarlyFile] = {}  # by name

    def truncated(self, path: object, frame: FrameType | None) -> None:
        try:
            if isinstance(path, int) or os.getpid() != self._process or len(self.found) >= MOST_EARLY:
                return
            name = os.fsdecode(path)  # type: ignore[arg-type]  # what cannot be a path raises
            place = script_place(frame)
            absolute = os.path.abspath(name)  # noqa: PTH100  a Path takes several times as long
            if place is not None and is_shared(absolute):
                self.found.setdefault(name, EarlyFile(absolute, name, place))
        except Exception:  # a warning that is missed costs less than a file that is not written
            return


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

early: EarlyFiles | None = None  # of this process, if it is a worker
_watching: Watcher | None = None
_is_hooked = False


def watch_early() -> None:
    """In a worker, when torch was imported: note what the script empties before `shoal.main`."""
    global early  # noqa: PLW0603  audit hooks are for whole processes, and stay
    early = EarlyFiles()
    watch(early)


def watch(files: Watcher) -> None:
    """From now on, `files` gets what this process empties."""
    global _watching, _is_hooked  # noqa: PLW0603  audit hooks are for whole processes, and stay
    _watching = files
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_audited)
        _hook_torch_save()
        if SAFETENSORS in sys.modules:
            _hook_safetensors()


def unwatch() -> None:
    global _watching  # noqa: PLW0603  as above
    _watching = None


def _audited(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: called for everything that Python audits, so it looks at the event's name first."""
    if event == "open" and _watching is not None:
        path, _, flags = arguments
        # O_EXCL ("x") creates a file or fails: only one worker gets through.
        if isinstance(flags, int) and flags & os.O_TRUNC:
            _watching.truncated(path, sys._getframe(1))
    elif event == "import" and isinstance(arguments[0], str) and arguments[0].startswith(f"{SAFETENSORS}."):
        _hook_safetensors()


def _hook_torch_save() -> None:
    """torch.save opens its file in C++, which audits nothing: watch the class that does so for it."""
    writer = getattr(sys.modules.get("torch.serialization"), "_open_zipfile_writer_file", None)
    if writer is None:
        return
    original: Callable[..., None] = writer.__init__

    @functools.wraps(original)
    def opening(self: object, name: object, *arguments: object, **named: object) -> None:
        if _watching is not None:
            _watching.truncated(name, sys._getframe(1))
        original(self, name, *arguments, **named)

    writer.__init__ = opening


def _hook_safetensors() -> None:
    """safetensors writes its files in Rust, which audits nothing either. Its modules for torch, numpy and others take
    the function that does so from their package when they are imported: watch it before, and in those that are there.
    """
    if f"{SAFETENSORS}._safetensors_rust" not in sys.modules:
        with contextlib.suppress(Exception):  # the script's own import, which follows, says what is wrong
            importlib.import_module(SAFETENSORS)
    package = sys.modules.get(SAFETENSORS)
    original: Callable[..., object] | None = getattr(package, SERIALIZE, None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def serialize_file(tensor_dict: object, filename: object, *arguments: object, **named: object) -> object:
        if _watching is not None:
            _watching.truncated(filename, sys._getframe(1))
        return original(tensor_dict, filename, *arguments, **named)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == SAFETENSORS and getattr(module, SERIALIZE, None) is original:
            setattr(module, SERIALIZE, serialize_file)
