"""The engine that a job has chosen (`--on`), by name, and the folder that travels to its nodes.

An engine names the function that makes it (`EngineKind.maker`); Shoal's own engines have a module each here. The
function checks what can be seen before any machine is asked. It is imported only if the engine is chosen. A function of
a script or a module travels with the folder from which it is imported. One that travels by cloudpickle takes along the
folder of the program that launched it, since it may import modules from there; from a notebook or a prompt it takes
none.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from shoal.engines.nodes.script_files import read_below, read_folder
from shoal.entry.function_script import FunctionCall, module_root, recorded_call
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.launching.elsewhere.gathering import Elsewhere, Folder
from shoal.launching.from_python.travelling import INSTALLED, MAIN

Maker = Callable[[JobConfig, Folder], Elsewhere]  # raises `UsageError` for what is seen before any machine is asked


def chosen_engine(config: JobConfig, script: str, arguments: tuple[str, ...]) -> Elsewhere | None:
    """None: this machine. Raises `UsageError`."""
    engine = config.engine
    if not engine.maker:
        return None
    if engine.package and importlib.util.find_spec(engine.package) is None:
        raise UsageError(texts.engine_not_installed(engine.name, engine.package, engine.requirement or engine.package))
    make: Maker = pkgutil.resolve_name(engine.maker)
    return make(config, _folder(script, recorded_call(script, arguments)))


def _folder(script: str, call: FunctionCall | None) -> Folder:
    """Raises `UsageError` if the folder cannot be read or is too large to travel."""
    if call is None:
        return read_folder(Path(script))
    if call.source.startswith("/"):
        return read_folder(Path(call.source))
    if not call.source:
        program = getattr(sys.modules.get(MAIN), "__file__", None)
        return None if program is None or _is_installed(Path(program)) else read_folder(Path(program))
    spec = importlib.util.find_spec(call.source)
    if spec is None or spec.origin is None or _is_installed(Path(spec.origin)):
        return None  # every node has it with its Python, or says that it has not
    return read_below(module_root(call.source, spec.origin), Path(spec.origin))


def _is_installed(file: Path) -> bool:
    """Whether a file came with Python or with a package: modules, and programs such as those of notebooks."""
    is_program = file.absolute().parent == Path(sysconfig.get_path("scripts"))
    return is_program or any(part in INSTALLED for part in file.absolute().parts)
