"""Records how the functions in WALK_FUNCTIONS are reached. Every Python process imports this where it is on PYTHONPATH.

Modules of the package get these functions wrapped as they are loaded; everything else runs at its usual speed. Each
call is a line of JSON in a file of the process in the folder WALK_FOLDER: a process that is killed leaves what it has
written. Only frames of the package count, and only those above the user's script WALK_SCRIPT.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FrameType, FunctionType, ModuleType
from typing import Any

PACKAGE = f"{os.sep}src{os.sep}shoal{os.sep}"
MOST_CALLS = 200  # of one function that are written down
FUNCTIONS = os.environ.get("WALK_FUNCTIONS", "").split(",")
SCRIPT = os.environ.get("WALK_SCRIPT", "")


def process_name(arguments: list[str]) -> str:
    if "coordinator" in arguments:
        return "coordinator"
    if "server" in arguments:
        return "home server" if "--number=0" in arguments else "other server"
    return "launcher" if "run" in arguments else "worker"


class Recorder:
    def __init__(self, folder: str) -> None:
        self._process = process_name(sys.orig_argv)
        self._calls: Counter[str] = Counter()
        path = os.path.join(folder, f"{os.getpid()}.jsonl")  # noqa: PTH118  pathlib is slow to import
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def called(self, function: FunctionType, caller: FrameType) -> None:
        name = function.__qualname__
        self._calls[name] += 1
        if self._calls[name] <= MOST_CALLS:
            path = [*path_to(caller), (place(function.__code__.co_filename), name)]
            line = {"process": self._process, "thread": threading.current_thread().name, "path": path}
            os.write(self._file, json.dumps(line).encode() + b"\n")

    def wrapped(self, found: Any) -> Any:
        """A function, a method, or a method of the class."""
        if isinstance(found, classmethod | staticmethod):
            return type(found)(self.wrapped(found.__func__))
        return self._wrapped(found) if isinstance(found, FunctionType) else found

    def _wrapped(self, function: FunctionType) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*positional: Any, **named: Any) -> Any:
            self.called(function, sys._getframe(1))
            return function(*positional, **named)

        return call


def place(file: str) -> str:
    """Of a file in the package; empty: it is elsewhere."""
    _, found, rest = file.rpartition(PACKAGE)
    return rest if found else ""


def path_to(frame: FrameType) -> list[tuple[str, str]]:
    """Files and functions of the package, outermost first."""
    path: list[tuple[str, str]] = []
    at: FrameType | None = frame
    while at is not None and at.f_code.co_filename != SCRIPT:
        if file := place(at.f_code.co_filename):
            path.append((file, at.f_code.co_qualname))
        at = at.f_back
    return path[::-1]


class WrappingLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name in FUNCTIONS:
            *owners, last = name.split(".")
            owner: Any = module
            for each in owners:
                owner = vars(owner).get(each) if owner is not None else None
            found = vars(owner).get(last) if owner is not None else None
            if getattr(found, "__module__", None) == module.__name__:  # others import what was wrapped where it is from
                setattr(owner, last, recorder.wrapped(found))


class WrappingFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname.startswith("shoal.") else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = WrappingLoader(spec.loader.name, spec.loader.path)
        return spec


if "WALK_FOLDER" in os.environ:
    recorder = Recorder(os.environ["WALK_FOLDER"])
    sys.meta_path.insert(0, WrappingFinder())
