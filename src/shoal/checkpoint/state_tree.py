"""A state as a tree of dictionaries, lists, numbers, strings and tensors, or as a skeleton plus a list of tensors.

Nothing else is allowed in a state, so that it never has to be unpickled. The skeleton is typed data in which each
tensor is replaced by its number, shape and dtype; the tensors travel or are stored beside it. On the wire the skeleton
is msgpack; in a manifest it is JSON, for people to read.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta

from shoal.bounds import Name, Ordinal, Shape, Whole
from shoal.checkpoint import texts
from shoal.errors import UsageError, WireError

MAX_DEPTH = 32
MOST_ITEMS = 1 << 26  # of one list or dictionary
_Text = Annotated[str, Meta(max_length=1 << 28)]

Tree = Any  # None | bool | int | float | str | torch.Tensor | list[Tree] | tuple[Tree, ...] | dict[str | int, Tree]


class TensorPlace(msgspec.Struct, frozen=True, tag="tensor"):
    number: Ordinal
    shape: Shape
    dtype: Name


class _Scalar(msgspec.Struct, frozen=True, tag="scalar"):
    value: bool | Whole | float | _Text | None


class _Special(msgspec.Struct, frozen=True, tag="float"):
    """A number that JSON cannot express: infinity or NaN."""

    value: Literal["nan", "inf", "-inf"]


class _Integer(msgspec.Struct, frozen=True, tag="int"):
    """An integer that does not fit into 64 signed bits, such as those in a random generator's state."""

    value: Annotated[str, msgspec.Meta(pattern="^-?[0-9]{1,4000}$")]


class _Sequence(msgspec.Struct, frozen=True, tag="list"):
    items: Annotated[list[_Node], Meta(max_length=MOST_ITEMS)]
    is_tuple: bool


class _Mapping(msgspec.Struct, frozen=True, tag="dict"):
    items: Annotated[list[tuple[_Text | Whole, _Node]], Meta(max_length=MOST_ITEMS)]
    kind: Literal["dict", "Counter", "OrderedDict"] = "dict"  # schedulers keep a Counter and need its methods


_DICTS: dict[Literal["dict", "Counter", "OrderedDict"], Any] = {
    "dict": dict,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
}
_Node = TensorPlace | _Scalar | _Special | _Integer | _Sequence | _Mapping
_decoder: msgspec.msgpack.Decoder[_Node] = msgspec.msgpack.Decoder(_Node)
_json_decoder: msgspec.json.Decoder[_Node] = msgspec.json.Decoder(_Node)
_SPECIAL: dict[str, Literal["nan", "inf", "-inf"]] = {"nan": "nan", "inf": "inf", "-inf": "-inf"}


def flatten_paths(tree: Tree, *, named: str) -> tuple[bytes, list[torch.Tensor], list[str]]:
    """Flatten a tree, and give each tensor's path in it."""
    flat = _Flattening(named)
    node = flat.node(tree, ())
    return msgspec.msgpack.encode(node), flat.tensors, flat.names


def flatten(tree: Tree, *, named: str) -> tuple[bytes, list[torch.Tensor]]:
    """Skeleton and tensors. `named` says whose state it is, in errors about what is not allowed in it."""
    flat = _Flattening(named)
    node = flat.node(tree, ())
    return msgspec.msgpack.encode(node), flat.tensors


@dataclass(frozen=True)
class NamedTensors:
    """A state as a manifest holds it."""

    skeleton: bytes  # JSON
    names: list[str]  # paths in the tree: models/model 1/fc.weight
    tensors: list[torch.Tensor]


def flatten_named(tree: Tree, *, named: str) -> NamedTensors:
    flat = _Flattening(named)
    node = flat.node(tree, ())
    return NamedTensors(msgspec.json.encode(node), flat.names, flat.tensors)


class _Flattening:
    def __init__(self, named: str) -> None:
        self._named = named
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []

    def node(self, tree: Tree, path: tuple[str | int, ...]) -> _Node:
        if len(path) > MAX_DEPTH:
            raise UsageError(texts.too_deep(self._named, MAX_DEPTH))
        if isinstance(tree, torch.Tensor):
            if tree.layout != torch.strided:
                raise UsageError(texts.not_dense(self._at(path), tree.layout))
            self.tensors.append(tree.detach())
            self.names.append("/".join(map(str, path)))
            return TensorPlace(number=len(self.tensors) - 1, shape=tuple(tree.shape), dtype=str(tree.dtype)[6:])
        if tree is None or isinstance(tree, bool | int | float | str):
            value = _plain(tree)
            if isinstance(value, float) and not math.isfinite(value):
                return _Special(_SPECIAL[str(value)])
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                return _Integer(str(value))
            if isinstance(value, str) and not _is_text(value):
                raise UsageError(texts.no_text(self._at(path), value))
            return _Scalar(value)
        if isinstance(tree, list | tuple):
            items = [self.node(item, (*path, index)) for index, item in enumerate(tree)]
            return _Sequence(items=items, is_tuple=isinstance(tree, tuple))
        if isinstance(tree, dict):
            for key in tree:
                if not isinstance(key, str | int) or isinstance(key, bool) or not _is_text(str(key)):
                    raise UsageError(texts.bad_key(self._at(path), key))
            entries = [(key, self.node(value, (*path, key))) for key, value in tree.items()]
            return _Mapping(entries, kind=next((k for k, made in _DICTS.items() if type(tree) is made), "dict"))
        raise UsageError(texts.bad_kind(self._at(path), type(tree).__name__))

    def _at(self, path: tuple[str | int, ...]) -> str:
        return self._named + "".join(f"[{key!r}]" for key in path)


def _is_text(value: str) -> bool:
    try:
        return value.encode() is not None
    except UnicodeEncodeError:
        return False


def _plain(value: bool | int | float | str | None) -> bool | int | float | str | None:
    """Subclasses such as numpy's float64 or an enum of strings become the plain type."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def tensor_places(skeleton: bytes) -> list[TensorPlace]:
    """The places of all tensors in a skeleton, in the order of their numbers."""
    places: list[TensorPlace] = []
    _walk(_decode(skeleton), places, 0)
    if [place.number for place in places] != list(range(len(places))):
        raise WireError("a state's skeleton does not number its tensors from 0 upwards")
    return places


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise WireError(f"{name!r} is not a dtype of torch")
    return dtype


def unflatten(skeleton: bytes, tensors: list[torch.Tensor]) -> Tree:
    return _from_node(_decode(skeleton), tensors)


def unflatten_named(skeleton: bytes, tensors: list[torch.Tensor]) -> Tree:
    """Build the tree from a manifest's JSON skeleton."""
    try:
        node = _json_decoder.decode(skeleton)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not the skeleton of a state: {error}") from None
    places: list[TensorPlace] = []
    _walk(node, places, 0)
    if [place.number for place in places] != list(range(len(tensors))):
        raise WireError(f"a state's skeleton does not number its {len(tensors)} tensors from 0 upwards")
    return _from_node(node, tensors)


def _decode(skeleton: bytes) -> _Node:
    try:
        return _decoder.decode(skeleton)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not the skeleton of a state: {error}") from None


def _walk(node: _Node, places: list[TensorPlace], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"a state is nested deeper than {MAX_DEPTH}")
    if isinstance(node, TensorPlace):
        places.append(node)
    elif isinstance(node, _Sequence):
        for item in node.items:
            _walk(item, places, depth + 1)
    elif isinstance(node, _Mapping):
        for _, item in node.items:
            _walk(item, places, depth + 1)


def _from_node(node: _Node, tensors: list[torch.Tensor]) -> Tree:
    if isinstance(node, TensorPlace):
        return tensors[node.number]
    if isinstance(node, _Scalar):
        return node.value
    if isinstance(node, _Special):
        return float(node.value)
    if isinstance(node, _Integer):
        return int(node.value)
    if isinstance(node, _Sequence):
        items = [_from_node(item, tensors) for item in node.items]
        return tuple(items) if node.is_tuple else items
    return _DICTS[node.kind]({key: _from_node(value, tensors) for key, value in node.items})
