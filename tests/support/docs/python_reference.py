"""The page `reference/run.md`: every public name of the package, from its source.

The source is parsed rather than imported: signatures read as they are written, fields keep the comments that explain
them, and nothing waits for torch. A class that a public function returns is public too.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import shoal

INTRO = """\
# Run, main and launch

Everything that `import shoal` offers. This page is made from the code: `python -m tests.support.docs.reference
--write`.

A script defines a function that takes a `Run` and hands it to `shoal.main`; all other calls are methods of that
`Run`. A call with wrong arguments ends the script with one line ([when it goes wrong](../when-it-goes-wrong.md)) and
exit code 2.
"""
ORDER = ("main", "Run", "Epoch", "Files", "table_files", "launch")  # as people meet them; others follow by name
BESIDE = ("dask", "ray", "spark")  # modules with a function `train` that are imported by themselves
TITLES = {"JobResult": "result"}  # what a script usually calls an object of the class
OPTIONS_OF = {"batches": "BatchOptions"}  # methods with **options, and the class whose fields these are
Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Source:
    """A module's text and its tree."""

    lines: tuple[str, ...]
    tree: ast.Module

    @classmethod
    def of(cls, module: str) -> Source:
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None, module
        text = Path(spec.origin).read_text(encoding="utf-8")
        return cls(tuple(text.splitlines()), ast.parse(text))

    def comment(self, node: ast.stmt) -> str:
        """What stands behind a field, after `#`."""
        line = self.lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
        return line.partition("#")[2].strip()


def find(module: str, name: str) -> tuple[Source, Definition] | None:
    """The definition of a name, where it is imported from if the module does not define it. None: it is not ours."""
    source = Source.of(module)
    for node in ast.walk(source.tree):
        match node:
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found) if found == name and node.col_offset == 0:
                return source, node
            case ast.ImportFrom(module=str(origin), names=names) if origin.split(".")[0] == "shoal":
                if any((alias.asname or alias.name) == name for alias in names):
                    return find(origin, name)
    return None


def python_page() -> str:
    names = sorted(shoal.__all__, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    places = [(name, shoal._HOMES[name]) for name in names]
    results: set[str] = (
        set()
    )  # objects of these are made by Shoal, so that their fields matter and their making does not
    parts = [INTRO]
    for name, home in places:  # grows by what is returned
        found = find(home, name)
        assert found is not None, name
        parts.append(section(name, *found, is_result=name in results))
        for returned in returned_classes(found[1]):
            results.add(returned)
            inner = find(home, returned)
            is_shown = any(returned == other for other, _home in places)
            if not is_shown and inner is not None and isinstance(inner[1], ast.ClassDef):
                places.append((returned, home))
    for module in BESIDE:
        found = find(f"shoal.{module}", "train")
        assert found is not None, module
        parts.append(section(f"{module}.train", *found))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts))


def returned_classes(node: Definition) -> list[str]:
    """Names of classes that a function, or a public method of a class, returns."""
    functions = [node, *(node.body if isinstance(node, ast.ClassDef) else ())]
    annotations = [
        function.returns
        for function in functions
        if isinstance(function, ast.FunctionDef) and function.returns is not None and function.name[0] != "_"
    ]
    names = [name.id for one in annotations for name in ast.walk(one) if isinstance(name, ast.Name)]
    return [name for name in dict.fromkeys(names) if name[0].isupper()]


def section(name: str, source: Source, node: Definition, *, is_result: bool = False) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"## shoal.{name}\n\n{block(f'shoal.{name}', node)}\n{prose(node)}\n"
    called = TITLES.get(name, name[0].lower() + name[1:])
    title = f"shoal.{name}" if name in shoal.__all__ else name
    lines = [f"## {title}\n", prose(node)]
    fields = list(public_fields(source, node))
    if is_dataclass(node) and not is_result:
        arguments = ", ".join(f"{field}: {kind}" for field, kind, _comment in fields).replace("\\|", "|")
        lines.append(f"```text\n{title}({arguments})\n```\n")
    lines += [field_line(called, *field) for field in fields if not (is_dataclass(node) and not is_result)]
    if lines[-1].startswith("- "):
        lines.append("")
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            lines.append(method_section(source, called, method))
    return "\n".join(lines)


def method_section(source: Source, called: str, method: ast.FunctionDef) -> str:
    if is_property(method):
        kind = f": `{ast.unparse(method.returns)}`" if method.returns else ""
        return f"### {called}.{method.name}\n\n`{called}.{method.name}`{kind}\n\n{prose(method)}\n"
    text = f"### {called}.{method.name}\n\n{block(f'{called}.{method.name}', method)}\n{prose(method)}\n"
    options = OPTIONS_OF.get(method.name)
    if options and called == "run":
        found = next(node for node in source.tree.body if isinstance(node, ast.ClassDef) and node.name == options)
        rows = "".join(f"| `{name}` | `{kind}` | {comment} |\n" for name, kind, comment in public_fields(source, found))
        text += f"\n| option | type and default | meaning |\n| --- | --- | --- |\n{rows}"
    return text


def public_fields(source: Source, node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Name, type with default, and comment of each field: of a dataclass, or assigned in `__init__`."""
    for child in node.body:
        match child:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value) if not name.startswith("_"):
                default = "" if value is None else f" = {ast.unparse(value)}"
                yield name, (ast.unparse(kind) + default).replace("|", "\\|"), source.comment(child)
            case ast.FunctionDef(name="__init__", body=body):
                for statement in body:
                    match statement:
                        case ast.Assign(targets=[ast.Attribute(attr=name)]) if not name.startswith("_"):
                            yield name, "", source.comment(statement)


def field_line(called: str, name: str, kind: str, comment: str) -> str:
    typed = f": `{kind.partition(' = ')[0]}`".replace("\\|", "|") if kind else ""
    return f"- `{called}.{name}`{typed}" + (f": {comment}" if comment else "")


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_property(method: ast.FunctionDef) -> bool:
    return any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in method.decorator_list)


def block(name: str, function: ast.FunctionDef) -> str:
    """The signature as it is called, one argument per line where it is long."""
    arguments = function.args
    if arguments.args and arguments.args[0].arg == "self":
        arguments = without_self(arguments)
    result = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    parts = [spaced(part) for part in split_arguments(ast.unparse(arguments))]
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) > 88:
        inner = ",\n    ".join(parts)
        line = f"{name}(\n    {inner},\n){result}"
    return f"```text\n{line}\n```\n"


def spaced(argument: str) -> str:
    """`count: int=1` as it is written by people."""
    return re.sub(r"^(\w+: .*?[\w\]'\"])=", r"\1 = ", argument)


def without_self(arguments: ast.arguments) -> ast.arguments:
    kept = {field: getattr(arguments, field) for field in arguments._fields}
    return ast.arguments(**{**kept, "args": arguments.args[1:]})


def split_arguments(text: str) -> list[str]:
    """At the commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


def prose(node: Definition) -> str:
    """The docstring, its paragraphs on one line each."""
    text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
    return "\n\n".join(re.sub(r"\s*\n\s*", " ", paragraph) for paragraph in text.split("\n\n")) + "\n"
