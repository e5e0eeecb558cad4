"""Where texts of one module reach people, followed back to where they are written. Reads the source, runs nothing.

A text reaches people where an error is made, a decision or event gets its reason, or a line is written to stderr. It is
written there, in a variable, in a function that is called there, or in a call of the function that passes it on. Texts
are followed within a module; those of `texts.py` and `reasons.py` are collected from these modules themselves.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Functions = ast.FunctionDef | ast.AsyncFunctionDef
# Calls, other than those of errors, whose argument at this place is read by people.
PLACES = {"Verdict": 1, "announce": 1, "told_if_slow": 0, "warn": 0, "DistBackendError": 0, "Refuse": 2}
KEYWORDS = ("reason", "text")  # arguments of messages and events that people read
TEXT_MODULES = ("texts", "reasons")  # what their functions are given may be a piece of text
FEWEST_IN_PIECES = 4  # words
WORD = re.compile(r"\S*[A-Za-z]{2}\S*")


@dataclass(frozen=True)
class Sink:
    """An expression whose value people read."""

    name: str  # of the error, event or call
    value: ast.expr
    is_piece: bool = False  # it is part of another text
    is_followed: bool = False  # it is written elsewhere

    @property
    def fewest_words(self) -> int:
        """Of a text that counts: shorter ones say little by themselves, or are names and numbers that vary."""
        return FEWEST_IN_PIECES if self.is_piece or self.name.startswith("_") else 3 * self.is_followed


class Flow:
    """The texts of one module."""

    def __init__(self, tree: ast.Module, errors: frozenset[str]) -> None:
        self._errors = errors
        self._owners: dict[int, Functions] = {}  # by id of a variable, the innermost function that it is in
        self._functions: dict[str, list[Functions]] = {}
        self._calls: dict[str, list[ast.Call]] = {}  # by the name that is called
        self._values: dict[tuple[int, str], list[ast.expr]] = {}  # by id of a function, and variable
        self._look_at(tree, None)

    def _look_at(self, node: ast.AST, owner: Functions | None) -> None:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._functions.setdefault(name, []).append(node)
                owner = node
            case ast.Call():
                self._calls.setdefault(called(node), []).append(node)
            case ast.Name() if owner is not None:
                self._owners[id(node)] = owner
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ):
                self._values.setdefault((id(owner), name), []).append(value)
        for child in ast.iter_child_nodes(node):
            self._look_at(child, owner)

    def written(self, templates: Callable[[ast.expr], Iterator[str]]) -> Iterator[tuple[str, str]]:
        """Pairs of the name of an error, event or call that shows a text, and the text's template."""
        sinks = [sink for calls in self._calls.values() for call in calls for sink in self._sinks_of(call)]
        return self._texts(sinks, templates)

    def returned(self, templates: Callable[[ast.expr], Iterator[str]]) -> Iterator[tuple[str, str]]:
        """Pairs of the name of a function and the template of a text that it returns."""
        functions = (function for functions in self._functions.values() for function in functions)
        sinks = [Sink(function.name, value) for function in functions for value in returned(function)]
        return self._texts(sinks, templates)

    def _texts(self, sinks: list[Sink], templates: Callable[[ast.expr], Iterator[str]]) -> Iterator[tuple[str, str]]:
        for sink in self._with_sources(sinks):
            for text in templates(sink.value):
                if len(WORD.findall(text)) >= sink.fewest_words:
                    yield sink.name, text

    def _with_sources(self, found: list[Sink]) -> list[Sink]:
        """Sinks, and what flows into them."""
        seen = {(id(sink.value), sink.is_piece) for sink in found}
        for sink in found:  # grows
            for source in self._sources(sink):
                if (id(source.value), source.is_piece) not in seen:
                    seen.add((id(source.value), source.is_piece))
                    found.append(source)
        return found

    def _sinks_of(self, call: ast.Call) -> Iterator[Sink]:
        name = called(call)
        if name in self._errors and call.args:
            yield Sink(name, call.args[0])
        elif name in PLACES and len(call.args) > PLACES[name]:
            yield Sink(name, call.args[PLACES[name]])
        elif writes_to_stderr(call):
            yield from (Sink("stderr", argument) for argument in call.args)
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).endswith(TEXT_MODULES):
            values = (*call.args, *(keyword.value for keyword in call.keywords))
            yield from (Sink(name, value, is_piece=True) for value in values)
        else:
            yield from (Sink(name, keyword.value) for keyword in call.keywords if keyword.arg in KEYWORDS)

    def _sources(self, sink: Sink) -> Iterator[Sink]:
        """What the value of a sink is made of, if that is written elsewhere in the module."""
        for value, is_part in parts(sink.value):
            is_piece = is_part or sink.is_piece
            match value:
                case ast.Name(id=variable):
                    yield from (Sink(sink.name, each, is_piece, True) for each in self._values_of(variable, value))
                case ast.Call():
                    for function in self._functions.get(called(value), ()):
                        yield from (Sink(sink.name, each, is_piece, True) for each in returned(function))

    def _values_of(self, variable: str, place: ast.expr) -> Iterator[ast.expr]:
        """What a variable may be in its function, or what callers pass for a parameter."""
        function = self._owners.get(id(place))
        if function is None:
            return
        yield from self._values.get((id(function), variable), ())
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        if variable in parameters:
            place_in_call = parameters.index(variable) - (parameters[0] in ("self", "cls"))
            for call in self._calls.get(function.name, ()):
                yield from call.args[place_in_call : place_in_call + 1]
                yield from (keyword.value for keyword in call.keywords if keyword.arg == variable)


def called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def writes_to_stderr(call: ast.Call) -> bool:
    if called(call) == "print":
        return any(keyword.arg == "file" and ast.unparse(keyword.value) == "sys.stderr" for keyword in call.keywords)
    return ast.unparse(call.func) == "sys.stderr.write"


def parts(node: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """Variables and calls that a text is made of; whether each is only a piece of it."""
    match node:
        case ast.Name() | ast.Call():
            yield node, False
        case ast.JoinedStr(values=values):
            around = " ".join(str(value.value) for value in values if isinstance(value, ast.Constant))
            is_piece = len(WORD.findall(around)) > 1  # not in "shoal: {text}"
            for value in values:
                if isinstance(value, ast.FormattedValue):
                    yield from ((inner, is_piece or is_part) for inner, is_part in parts(value.value))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            yield from ((inner, True) for side in (left, right) for inner, _ in parts(side))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*parts(body), *parts(orelse))
        case ast.BoolOp(values=values):
            for value in values:
                yield from parts(value)


def returned(function: Functions) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
