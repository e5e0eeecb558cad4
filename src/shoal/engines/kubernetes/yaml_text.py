"""YAML for people and for every reader of YAML 1.1 and 1.2: mappings, lists, texts, whole numbers and switches. Pure.

Shoal needs no package for it, and a text that could be taken for something else is always in quotes. Not here: reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

# A text that every reader takes for itself: no number, no switch, nothing with a meaning in YAML.
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")
SWITCHES = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})  # in YAML 1.1
# Characters that YAML does not take as they are, or that some readers take for the end of a line.
UNUSUAL = re.compile("[\x00-\x1f\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
IN_BLOCKS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def documents(several: Iterable[Mapping[str, object]]) -> str:
    """One stream of documents."""
    return "".join("---\n" + "".join(f"{line}\n" for line in _mapping(each)) for each in several)


def _mapping(value: Mapping[str, object]) -> Iterator[str]:
    for name, entry in value.items():
        first, *rest = _lines(entry)
        yield f"{_scalar(name)}:{first and f' {first}'}"
        yield from rest


def _lines(value: object) -> Iterator[str]:
    """What follows `NAME:` in its line, which may be nothing, then further lines."""
    if isinstance(value, Mapping) and value:
        yield ""
        yield from (f"  {line}" if line else "" for line in _mapping(value))
    elif isinstance(value, list | tuple) and value:
        yield ""
        yield from _items(value)
    elif isinstance(value, str) and _suits_a_block(value):
        yield "|" if value.endswith("\n") else "|-"
        yield from (f"  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    else:
        yield _scalar(value)


def _items(values: Sequence[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping) and value:
            first, *rest = _mapping(value)
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in rest)
        else:
            yield f"- {_scalar(value)}"


def _suits_a_block(text: str) -> bool:
    """Whether a text of several lines can stand there line by line."""
    lines = text.removesuffix("\n")
    if "\n" not in text or not lines or lines[0] in " \t\n" or lines.endswith("\n"):
        return False
    return not IN_BLOCKS.search(text) and not any(line.isspace() for line in lines.split("\n"))


def _scalar(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str() if PLAIN.fullmatch(value) and value.lower() not in SWITCHES:
            return value
        case str():
            return _quoted(value)
        case Mapping() if not value:
            return "{}"
        case list() | tuple() if not value:
            return "[]"
    raise TypeError(f"{type(value).__name__} has no place in a document")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    escaped = UNUSUAL.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped)
    return f'"{escaped}"'
