"""Messages of the package as people read them: texts of each `texts.py`, reasons of decisions, errors, warnings.

A message is a template: what varies is written as `…`. Templates are read from the source, so that no function has to
be called with values that it can use. A function that returns one of two texts has two templates; a text inside
another one (`{hint}`) is a template of its own if it has some words, and `…` in the other. How texts are found outside
of `texts.py` is in `text_flow`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import shoal
from shoal.errors import all_errors
from support.docs.text_flow import Flow

ROOT = Path(shoal.__file__).parent
TROUBLE = Path(__file__).parents[3] / "docs" / "troubleshooting"
ANY = "…"
TEXT_MODULES = ("texts.py", "reasons.py")
SCREEN = ("watch/screen/notices.py", "watch/server_words.py")  # what their functions return is shown while a job runs
OTHER_MAKERS = ("calls_apart", "unknown_variable")  # functions outside of `texts.py` whose texts come with no error
WARNINGS = ("warning: ", "shoal: warning: ")  # how a text begins that is a warning wherever it stands
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
ENTRY = re.compile(r"^- (`.*)$((?:\n  .*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Message:
    source: str  # path below the package, such as launching/texts.py
    name: str  # of the constant or function, or of the error that is raised
    text: str

    @property
    def page(self) -> str:
        """The page of `docs/troubleshooting/` where a message of this package most likely belongs."""
        package = self.source.split("/")[0]
        return PAGES.get(self.source, PAGES.get(package, "workers.md"))

    @property
    def entry(self) -> str:
        """The line that opens the message's entry on its page."""
        ticks = "``" if "`" in self.text else "`"
        pad = " " if ticks == "``" and (self.text.startswith("`") or self.text.endswith("`")) else ""
        return f"- {ticks}{pad}{self.text}{pad}{ticks}"


@dataclass(frozen=True)
class Entry:
    page: str  # name of the file
    line: str  # with the messages
    body: str  # what the page says about them


PAGES = {
    "launching/chaos/texts.py": "tools.md",
    "engines/kubernetes/texts.py": "starting.md",
    "engines": "nodes.md",
    "wire": "starting.md",
    "bench": "tools.md",
    "plan": "tools.md",
    "launching": "starting.md",
    "cli": "starting.md",
    "entry": "starting.md",
    "settings": "settings.md",
    "training": "script.md",
    "strategies": "script.md",
    "data": "data.md",
    "checkpoint": "checkpoints.md",
    "parameters": "servers.md",
    "collectives": "collectives.md",
}


@cache
def messages() -> tuple[Message, ...]:
    found = [message for path in sorted(ROOT.rglob("*.py")) for message in messages_in(path)]
    return tuple(message for message in found if re.search(r"[a-z]{2}", message.text))


def messages_in(path: Path) -> Iterator[Message]:
    source = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    if path.name in TEXT_MODULES:
        module = ast.parse(text)
        for node in module.body:
            yield from (Message(source, name, template) for name, template in named_texts(node))
        yield from (Message(source, *found) for found in Flow(module, error_names()).returned(templates))
        return
    tree = ast.parse(text)
    if source in SCREEN:
        yield from (Message(source, *found) for found in Flow(tree, error_names()).returned(templates))
    if "class Distrust" in text or "warning: " in text:
        yield from (Message(source, name, template) for name, template in written_texts(tree))
    yield from (Message(source, name, template) for name, template in Flow(tree, error_names()).written(templates))
    if any(f"def {name}(" in text for name in text_makers()):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in text_makers():
                yield from (Message(source, name, template) for name, template in named_texts(node))


@cache
def error_names() -> frozenset[str]:
    return frozenset(error.__name__ for error in all_errors())


@cache
def text_makers() -> frozenset[str]:
    """Functions outside of `texts.py` that make a text, as in `UsageError(call_missed(...))`."""
    made = re.compile(rf"\b(?:{'|'.join(error_names())})\((\w+)\(")
    found = (name for path in ROOT.rglob("*.py") for name in made.findall(path.read_text(encoding="utf-8")))
    return frozenset((*found, *OTHER_MAKERS))


def written_texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Reasons in an enumeration, and warnings."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name="Distrust", body=body):
                yield from ((node.name, text) for statement in body for _name, text in named_texts(statement))
            case ast.JoinedStr() | ast.Constant(value=str()) if id(node) not in inner:
                yield from (("warning", text) for text in templates(node) if text.startswith(WARNINGS))


def named_texts(node: ast.stmt) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(values=values)):
            yield from ((name, template) for value in values for template in templates(value))
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield from ((name, template) for template in templates(value))
        case ast.FunctionDef(name=name) if not name.startswith("_"):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from ((name, template) for template in templates(inner.value))


def templates(node: ast.expr) -> Iterator[str]:
    """What a text may be, `…` for what varies. Nothing, if it is not written there."""
    match node:
        case ast.Constant(value=str(text)):
            yield tidy(text)
        case ast.JoinedStr(values=values):
            yield tidy("".join(filled(part) for part in values))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            yield from (tidy(one + other) for one in pieces(left) for other in pieces(right))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*templates(body), *templates(orelse))
        case ast.BoolOp(values=values):
            yield from (template for value in values for template in templates(value))
        case ast.Call(func=ast.Name(), args=arguments):
            yield from (template for argument in arguments for template in templates(argument))


def filled(part: ast.expr) -> str:
    """Part of an f-string: its words, those of a constant that stands there, or `…`."""
    match part:
        case ast.Constant(value=value):
            return str(value)
        case ast.FormattedValue(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return constants().get(name, ANY)
    return ANY


@cache
def constants() -> dict[str, str]:
    """Texts with a name in capitals, of all modules of texts; not those whose name has several values."""
    found: dict[str, set[str]] = {}
    for path in (path for name in TEXT_MODULES for path in ROOT.rglob(name)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if name.isupper():
                    found.setdefault(name, set()).add(text)
    return {name: texts.pop() for name, texts in found.items() if len(texts) == 1}


def pieces(node: ast.expr) -> list[str]:
    return list(templates(node)) or [ANY]


def tidy(text: str) -> str:
    return re.sub(r"…+", ANY, re.sub(r"\s+", " ", text)).strip()


def entries() -> Iterator[Entry]:
    for page in sorted(TROUBLE.glob("*.md")):
        for line, body in ENTRY.findall(page.read_text(encoding="utf-8")):
            yield Entry(page.name, line, tidy(body))


def explained() -> dict[str, str]:
    """By template, the page that has an entry for it."""
    found: dict[str, str] = {}
    for entry in entries():
        for _ticks, text in SPAN.findall(entry.line):
            found.setdefault(tidy(text), entry.page)
    return found
