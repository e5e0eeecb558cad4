"""How a function gets to workers: as a module and a name where they can import it, else by cloudpickle in a file.

The file is readable by its owner only, in a folder of its own, and gone when the job is. Not here: what a worker does
with either (`entry.function_script`).
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.entry.function_script import SCRIPT, FunctionCall, recorded_call
from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.disk.job_token import FUNCTION, private_file

MAIN = "__main__"
PLAIN = (str, bool, type(None))  # what JSON holds as it is, besides finite numbers
MOST_INTEGER = 2**53  # beyond, readers of JSON differ
LONGEST = 64 * 1024  # characters of arguments on a command line, which holds 128 KiB
INSTALLED = ("site-packages", "dist-packages")  # folders that every process of this Python knows by itself


@dataclass(frozen=True)
class Travelling:
    """A function as a script with arguments."""

    script: str
    arguments: tuple[str, ...]
    private_files: tuple[Path, ...] = ()  # to be removed with the job


@contextlib.contextmanager
def travelling(function: Callable[..., object], keywords: Mapping[str, object]) -> Iterator[Travelling]:
    """While the block runs, workers can call the function."""
    _check_keywords(function, keywords)
    folders = own_folders()
    call = by_name(function, keywords)
    if call is not None:
        yield Travelling(SCRIPT, replace(call, folders=folders).as_arguments())
        return
    with private_file(FUNCTION, pickled(function, keywords), texts.function_not_written) as file:
        call = FunctionCall(name_of(function).rpartition(".")[2], pickle=str(file), folders=folders)
        yield Travelling(SCRIPT, call.as_arguments(), (file,))


def check_function(script: str, arguments: Sequence[str], run_dir: Path) -> None:
    """Refuse to go on with a job whose function was a copy, which is gone."""
    call = recorded_call(script, arguments)
    if call is not None and call.pickle and not Path(call.pickle).exists():
        raise UsageError(texts.function_not_kept(call.name, run_dir))


def name_of(function: Callable[..., object]) -> str:
    """For people; a lambda is called `lambda`."""
    name = getattr(function, "__qualname__", "") or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2].strip("<>")


def _check_keywords(function: Callable[..., object], keywords: Mapping[str, object]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C, and silent about what it takes
        return
    try:
        signature.bind(object(), **keywords)
    except TypeError as error:
        raise UsageError(texts.wrong_keywords(name_of(function), str(signature), error)) from None


# By module and name


def by_name(function: Callable[..., object], keywords: Mapping[str, object]) -> FunctionCall | None:
    """The function as module and name, or as script and name; None if workers could not import it so."""
    name, home = str(getattr(function, "__qualname__", "")), getattr(function, "__module__", None)
    module = sys.modules.get(str(home))
    if module is None or _inside(module, name) is not function or not is_plain(keywords):
        return None
    source = _main_source(module, function) if home == MAIN else home if is_importable(module) else None
    call = FunctionCall(name, str(source), dict(keywords))
    return None if source is None or sum(map(len, call.as_arguments())) > LONGEST else call


def _inside(module: ModuleType, name: str) -> object:
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:  # a lambda, or defined in another function
        return None


def _main_source(main: ModuleType, function: Callable[..., object]) -> str | None:
    """The module or the script that this program was started as; None if the function is not from that file."""
    spec, script = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if script is None or code is None or not _is_same_file(code.co_filename, script):
        return None  # from a notebook's cell or a prompt
    if is_in_main_part(Path(script).read_bytes(), code.co_firstlineno):
        return None
    return str(Path(script).resolve()) if spec is None else str(spec.name)  # `python -m NAME` has a spec


def is_in_main_part(source: bytes, line: int) -> bool:
    """Whether the line is under `if __name__ == "__main__":`, which is not run where the script is imported."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or node.lineno):
            return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
    return False


def is_importable(module: ModuleType) -> bool:
    """Whether a new process with the same `sys.path` finds this very module under its name."""
    folders: Any = None  # in which to look; None: `sys.path`
    spec = None
    parts = module.__name__.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        found = (find(name, folders) for find in finders if find is not None)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return False
        folders = spec.submodule_search_locations
    return spec is not None and _is_same_file(spec.origin, getattr(module, "__file__", None))


def _is_same_file(one: str | None, other: str | None) -> bool:
    try:
        return one is not None and other is not None and Path(one).samefile(other)
    except OSError:  # one of them is no file: a cell of a notebook, a module that Python has built in
        return one == other


def is_plain(value: object) -> bool:
    """Whether JSON gives back exactly this value."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(one) for key, one in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is int:
        return abs(value) <= MOST_INTEGER
    return type(value) in PLAIN or (type(value) is float and math.isfinite(value))


def own_folders() -> tuple[str, ...]:
    """The folders on this program's `sys.path` that a new process might not know."""
    known = {str(Path(path).resolve()) for path in sysconfig.get_paths().values()}
    folders = (Path(entry or ".").resolve() for entry in sys.path)
    own = (path for path in folders if path.is_dir() and path.name not in INSTALLED)
    return tuple(dict.fromkeys(str(path) for path in own if not _belongs_to_python(path, known)))


def _belongs_to_python(path: Path, known: set[str]) -> bool:
    return str(path) in known or str(path.parent) in known  # `lib-dynload` is inside the standard library


# By cloudpickle


def pickled(function: Callable[..., object], keywords: Mapping[str, object]) -> bytes:
    name = name_of(function)
    try:
        import cloudpickle  # type: ignore[import-untyped]  # a documented exception: workers of this user alone read it
    except ImportError:
        raise UsageError(texts.no_cloudpickle(name)) from None
    module = sys.modules.get(str(getattr(function, "__module__", None)))
    has_to_be_copied = module is not None and module.__name__ != MAIN and not is_importable(module)
    if has_to_be_copied:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps((function, dict(keywords))))
    except Exception as error:  # whatever an object does when it is asked to be pickled
        raise UsageError(texts.not_pickled(name, error)) from None
    finally:
        if has_to_be_copied:
            cloudpickle.unregister_pickle_by_value(module)
