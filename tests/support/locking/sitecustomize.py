"""Records which lock is taken while which other is held. Every Python process imports this where it is on PYTHONPATH.

Locks and conditions that modules of the package make are wrapped; all others stay as they are. Each pair is a line of
JSON, once per process, in a file of the process in the folder LOCKS_FOLDER. A lock is named as in `docs/design.md`: the
module, and the name that it is assigned to.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
import threading
from typing import Any

PACKAGE = f"{os.sep}src{os.sep}shoal{os.sep}"
ASSIGNED = re.compile(r"(?:self\.)?(\w+)(?::[^=]*)? = ")
make_lock, make_rlock, make_condition = threading.Lock, threading.RLock, threading.Condition
held = threading.local()  # .names: of the locks that this thread holds, in the order in which it took them


def name_of_caller(depth: int) -> str:
    """Empty: it is no module of the package that makes the lock."""
    frame = sys._getframe(depth)
    _, found, module = frame.f_code.co_filename.rpartition(PACKAGE)
    assigned = ASSIGNED.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip())
    return f"{module}: {assigned[1] if assigned else '?'}" if found else ""


class NamedLock:
    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        names = vars(held).setdefault("names", [])
        if blocking:
            for other in names:
                if other != self._name:
                    record(other, self._name)
        taken: bool = self._inner.acquire(blocking, timeout)
        if taken:
            names.append(self._name)
        return taken

    def release(self) -> None:
        self._inner.release()
        names = vars(held).setdefault("names", [])
        if self._name in names:  # a plain lock may be released by another thread than took it
            names.reverse()
            names.remove(self._name)
            names.reverse()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        """What conditions ask of a re-entrant lock: whoever waits has let go of it, and takes it again as it was."""
        return getattr(self._inner, name)


recorded: set[tuple[str, str]] = set()
file = -1


def record(outer: str, inner: str) -> None:
    if (outer, inner) not in recorded:
        recorded.add((outer, inner))
        line = {"outer": outer, "inner": inner, "thread": threading.current_thread().name, "process": sys.orig_argv}
        os.write(file, json.dumps(line).encode() + b"\n")


def lock() -> Any:
    name = name_of_caller(2)
    return NamedLock(make_lock(), name) if name else make_lock()


def rlock() -> Any:
    name = name_of_caller(2)
    return NamedLock(make_rlock(), name) if name else make_rlock()


def condition(given: Any = None) -> Any:
    name = name_of_caller(2)
    return make_condition(NamedLock(make_rlock(), name) if given is None and name else given)


if "LOCKS_FOLDER" in os.environ:
    path = os.path.join(os.environ["LOCKS_FOLDER"], f"{os.getpid()}.jsonl")  # noqa: PTH118  pathlib is slow to import
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    threading.Lock = lock  # type: ignore[assignment]
    threading.RLock = rlock
    threading.Condition = condition  # type: ignore[assignment, misc]
