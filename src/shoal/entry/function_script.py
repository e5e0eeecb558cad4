"""The script that workers run when `shoal.launch` is given a function: finds the function and hands it to `shoal.main`.

    function_script.py SOURCE:NAME [--arguments=JSON] [--pickle=FILE] [--path=FOLDER ...]

SOURCE is a module's name or the absolute path of a script, which is imported, so that nothing under its
`if __name__ == "__main__"` runs. A function without either travels by cloudpickle in FILE, which only its owner can
read: the one place where Shoal unpickles anything. Each FOLDER is one in which the launching program finds modules. On
other nodes the source and FILE may have other paths, which variables tell. Not here: which way a function takes
(`launching.from_python.travelling`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from shoal.entry import texts
from shoal.environment import function_file_here, script_here
from shoal.errors import UsageError

SCRIPT = str(Path(__file__).resolve())
COMMAND = ("-P", "-m", "shoal.entry.function_script")  # for Python on another machine, where this file has another path
ARGUMENTS, PICKLE, PATH = "--arguments=", "--pickle=", "--path="
STAND_IN = "shoal_launched_script"  # a script's module name, where the script is called like a module that is in use
OTHERS_FRAMES = (str(Path(__file__).parents[1]), "<frozen ")  # file names of frames that are not the user's


@dataclass(frozen=True)
class FunctionCall:
    """What a worker calls: `name` of `source` with keyword arguments, or what is pickled."""

    name: str  # qualified, as in `Class.method`
    source: str = ""  # a module, or a script's absolute path; empty: see `pickle`
    keywords: Mapping[str, Any] = field(default_factory=dict)
    pickle: str = ""  # file with (function, keywords)
    folders: tuple[str, ...] = ()  # for `sys.path`

    def as_arguments(self) -> tuple[str, ...]:
        """For `SCRIPT`; `parsed` is the inverse."""
        return (
            f"{self.source}:{self.name}",
            *((ARGUMENTS + json.dumps(self.keywords),) if self.keywords else ()),
            *((PICKLE + self.pickle,) if self.pickle else ()),
            *(PATH + folder for folder in self.folders),
        )


def parsed(arguments: Sequence[str]) -> FunctionCall:
    source, _, name = arguments[0].rpartition(":")
    given = {start: [one[len(start) :] for one in arguments if one.startswith(start)] for start in (ARGUMENTS, PICKLE)}
    return FunctionCall(
        name=name,
        source=source,
        keywords=json.loads(given[ARGUMENTS][0]) if given[ARGUMENTS] else {},
        pickle=given[PICKLE][0] if given[PICKLE] else "",
        folders=tuple(one[len(PATH) :] for one in arguments if one.startswith(PATH)),
    )


def recorded_call(script: str, arguments: Sequence[str]) -> FunctionCall | None:
    """The call behind a job's script and arguments; None for a script of the user's own."""
    return parsed(arguments) if Path(script).name == Path(SCRIPT).name and arguments else None


def title_of(script: str, arguments: Sequence[str]) -> str:
    """What to call a job: its script, or the name of its function."""
    call = recorded_call(script, arguments)
    return script if call is None else call.name.rpartition(".")[2]


# In a worker


def main() -> None:
    call = parsed(sys.argv[1:])
    # Python has put the folder of this file first, whose modules are nobody's to import by their bare names.
    usual = [entry for entry in sys.path if entry != str(Path(SCRIPT).parent)]
    folders = dict.fromkeys((*folders_here(call), *call.folders))
    sys.path[:] = [*(folder for folder in folders if folder not in usual), *usual]
    sys.argv = [call.source or SCRIPT]
    try:
        train = found(call)
    except (Exception, SystemExit) as error:
        train = _failing(error)
    from shoal.entry import shoal_main  # noqa: PLC0415  after the user's own imports, which may set variables for torch

    shoal_main.main(train)


def folders_here(call: FunctionCall) -> tuple[str, ...]:
    """The folder on this node that has travelled with the function; nothing where the launcher's own is used."""
    if not (script := script_here("")):
        return ()
    is_module = call.source and not call.source.startswith("/")
    return (str(module_root(call.source, script) if is_module else Path(script).parent),)


def module_root(module: str, file: str) -> Path:
    """The folder on `sys.path` in which a module is found that has this file."""
    steps = len(module.split(".")) - 1 + (Path(file).stem == "__init__")
    return Path(file).absolute().parents[steps]


def found(call: FunctionCall) -> Callable[..., Any]:
    """The function with its keyword arguments, to be called with a `Run`."""
    function, keywords = (
        _unpickled(function_file_here(call.pickle)) if call.pickle else (_imported(call), call.keywords)
    )
    return function if not keywords else lambda run: function(run, **keywords)


def _imported(call: FunctionCall) -> Any:
    is_script = call.source.startswith("/")
    home = _imported_script(script_here(call.source)) if is_script else importlib.import_module(call.source)
    return reduce(getattr, call.name.split("."), home)


def _imported_script(path: str) -> ModuleType:
    """The script as a module under its own name, so that what it defines can be found again by that name."""
    stem = Path(path).stem
    name = STAND_IN if stem in sys.modules else stem
    loader = SourceFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def _unpickled(file: str) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Unpickling runs whatever the file says: it must be one that nobody else can have written."""
    file = function_file_here(file)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(texts.function_gone(file)) from None
    with os.fdopen(descriptor, "rb") as opened:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise UsageError(texts.function_not_private(file))
        function, keywords = pickle.load(opened)  # noqa: S301
    return function, keywords


def _failing(error: BaseException) -> Callable[..., Any]:
    """A function that fails as finding the real one did: so the job ends at once and says why, once."""
    frames = _users(error.__traceback__)

    def train(_run: object) -> None:
        raise error.with_traceback(frames)

    return train


def _users(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the user's code on."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OTHERS_FRAMES):
        frames = frames.tb_next
    return frames


if __name__ == "__main__":
    main()
