"""What a script's text tells before it runs: the names that it mentions and the modules that it needs.

Reads the script and the modules beside it that it imports, as text; runs and compiles nothing. Not here: what follows
from it (`cli.jobs.script_options`, `cli.jobs.manifests`, `screen`).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from shoal import files

MOST_BYTES = 1 << 20  # of one module
MOST_MODULES = 50  # beside the script
# "import a, b.c as d" and "from a.b import c": what is imported, and from where.
IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+\(?([\w., \t]+)", re.MULTILINE)
# Modules that load no torch, besides Python's own.
WITHOUT_TORCH = frozenset({"numpy", "scipy", "pandas", "sklearn", "matplotlib", "PIL", "tqdm"})
STARTING_OTHERS = frozenset({"subprocess", "multiprocessing", "importlib", "runpy", "ctypes", "socket"})


@dataclass(frozen=True)
class ScriptSource:
    text: str  # of the script and of the modules beside it that it imports
    modules: frozenset[str]  # first names of all modules that they import from elsewhere

    def mentions(self, pattern: str) -> bool:
        return re.search(pattern, self.text) is not None

    @property
    def is_without_torch(self) -> bool:
        """Whether it is certain that the script neither loads torch nor starts a program that could."""
        harmless = (sys.stdlib_module_names | WITHOUT_TORCH) - STARTING_OTHERS
        return bool(self.text) and self.modules <= harmless and not self.mentions(r"\bos\.(exec|spawn|system|popen)")


def source_of(script: Path) -> ScriptSource:
    """Empty where the script cannot be read."""
    folder, waiting, seen = script.parent, [script], {script}
    texts: list[str] = []
    modules: set[str] = set()
    while waiting and len(texts) < MOST_MODULES:
        text = _read(waiting.pop())
        texts.append(text)
        for name in _imported(text):
            found = [path for path in _beside(folder, name) if path not in seen]
            waiting += found
            seen.update(found)
            first = folder / name.partition(".")[0]
            if not first.is_dir() and not first.with_suffix(".py").is_file():
                modules.add(first.name)
    return ScriptSource("\n".join(texts), frozenset(modules))


def modules_beside(script: Path) -> list[str]:
    """Files of modules that lie beside the script and that it imports itself, as paths from its folder."""
    found = [path for name in _imported(_read(script)) for path in _beside(script.parent, name) if path != script]
    return [str(path.relative_to(script.parent)) for path in found]


def _imported(text: str) -> list[str]:
    names = []
    for package, what in IMPORT.findall(text):
        listed = [part.split()[0] for part in what.split(",") if part.split()]
        names += [package, *(f"{package}.{name}" for name in listed)] if package else listed
    return [name for name in names if not name.startswith(".")]


def _beside(folder: Path, name: str) -> list[Path]:
    path = folder.joinpath(*name.split("."))
    return [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]


def _read(path: Path) -> str:
    try:
        return files.read_plain(path, MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
