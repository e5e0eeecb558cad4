"""Everything that is decoded from outside has bounds: numbers, texts, bytes, lists and mappings, wherever they are.

The types are found in the source: whatever is given to a decoder of msgspec. Fixed layouts (`struct`) are bounded by
their fields, and checked where they are read.
"""

from __future__ import annotations

import ast
import importlib
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import shoal
from shoal.events import AnyEvent, Event
from shoal.wire.ledger_entries import AnyEntry, Entry
from shoal.wire.messages import ClientMessage, CoordinatorMessage, Message
from shoal.wire.note import Note
from shoal.wire.parameter_messages import AnyNote

ROOT = Path(shoal.__file__).parent
# What decodes only what this program's own processes say over pipes, or what a user has written in a file of settings.
OWN = ("bench/", "codecs/registry.py", "job_config.py", "settings/")
DECODES = re.compile(r"msgspec\.((msgpack|json|toml)\.)?(decode|convert|Decoder)")


def decoded_types() -> Iterator[tuple[str, Any]]:
    """Where in the source something is decoded, and into which type."""
    for path in sorted(ROOT.rglob("*.py")):
        where = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        if where.startswith(OWN) or "msgspec" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and DECODES.fullmatch(ast.unparse(node.func)):
                yield f"{where}:{node.lineno}", _type_of(node, where)


def _type_of(call: ast.Call, where: str) -> Any:
    """What stands for the type in a call: a keyword, the first argument of a Decoder, the second of `convert`."""
    named = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
    assert isinstance(call.func, ast.Attribute)
    given = named or (call.args[1:2] if call.func.attr == "convert" else call.args[:1])
    assert given, f"{where}:{call.lineno} decodes without a type"
    module = importlib.import_module("shoal." + where.removesuffix(".py").replace("/", "."))
    expression = ast.unparse(given[0])
    if expression == "kind":  # of a function that is given one
        return None
    return eval(expression, vars(module))


def lacks(kind: inspect.Type) -> str:
    """What has no bound in a type, apart from the types in it; empty: nothing."""
    match kind:
        case inspect.IntType(ge=None) | inspect.IntType(le=None):
            return "a number"
        case inspect.StrType(max_length=None, pattern=None):
            return "a text"
        case inspect.BytesType(max_length=None) | inspect.ByteArrayType() | inspect.MemoryViewType():
            return "bytes"
        case inspect.CollectionType(max_length=None) | inspect.DictType(max_length=None):
            return "a list or a mapping"
        case inspect.AnyType():
            return "anything at all"
    return ""


def within(kind: inspect.Type, name: str) -> Iterator[tuple[str, inspect.Type]]:
    """The types in a type, with words for where they are."""
    match kind:
        case inspect.CollectionType():
            yield f"{name}[]", kind.item_type
        case inspect.DictType():
            yield from ((f"{name} (key)", kind.key_type), (f"{name}[]", kind.value_type))
        case inspect.TupleType():
            yield from ((f"{name}[{number}]", item) for number, item in enumerate(kind.item_types))
        case inspect.UnionType():
            yield from ((name, item) for item in kind.types)
        case inspect.StructType():
            yield from ((f"{kind.cls.__name__}.{field.name}", field.type) for field in kind.fields)


def unbounded(kind: inspect.Type, name: str, seen: set[type]) -> Iterator[str]:
    """What in a type, and in those in it, has no bound."""
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
    if missing := lacks(kind):
        yield f"{name}: {missing}"
    for where, part in within(kind, name):
        yield from unbounded(part, where, seen)


def test_every_type_that_is_decoded_has_bounds() -> None:
    found = [(where, kind) for where, kind in decoded_types() if kind is not None]
    assert len(found) > 20, "the source is looked through in another way than it is written"
    known = [*found, ("transport/memory/neighbours.py", _private("shoal.transport.memory.neighbours", "_Introduction"))]
    known.append(("transport/memory/neighbours.py", _private("shoal.transport.memory.neighbours", "_Findings")))
    seen: set[type] = set()
    loose = {
        f"{where}: {what}"
        for where, kind in known
        for what in unbounded(inspect.type_info(kind), getattr(kind, "__name__", str(kind)), seen)
    }
    assert not loose, "\n".join(sorted(loose))


def _private(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def derived(base: type) -> Iterator[type]:
    """Messages that derive from it."""
    for kind in base.__subclasses__():
        if kind.__subclasses__():
            yield from derived(kind)
        else:
            yield kind


@pytest.mark.parametrize(
    ("base", "union"),
    [(Note, AnyNote), (Message, ClientMessage | CoordinatorMessage), (Event, AnyEvent), (Entry, AnyEntry)],
)
def test_every_message_is_among_those_that_are_decoded(base: type, union: types.UnionType) -> None:
    """One that is missing could not be decoded, and nobody would look at its types."""
    assert set(derived(base)) == set(typing.get_args(union))


def test_a_number_out_of_bounds_is_refused_by_decoding() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.Decoder(AnyNote).decode(
            msgspec.msgpack.encode({"type": "relay", "generation": 2**40, "peer": 0})
        )
