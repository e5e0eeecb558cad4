"""A state as a tree of dictionaries, lists, numbers, strings and tensors; and as a skeleton plus a list of tensors.

Nothing else is allowed in a state, so that it never has to be unpickled. The skeleton is typed bytes in which each
tensor is replaced by its number, shape and dtype; the tensors travel or are stored beside it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from shoal.errors import UsageError, WireError

MAX_DEPTH = 32

Tree = Any  # None | bool | int | float | str | torch.Tensor | list[Tree] | tuple[Tree, ...] | dict[str | int, Tree]


class TensorPlace(msgspec.Struct, frozen=True, tag="tensor"):
    number: int
    shape: tuple[int, ...]
    dtype: str


class _Scalar(msgspec.Struct, frozen=True, tag="scalar"):
    value: bool | int | float | str | None


class _Sequence(msgspec.Struct, frozen=True, tag="list"):
    items: list[_Node]
    is_tuple: bool


class _Mapping(msgspec.Struct, frozen=True, tag="dict"):
    items: list[tuple[str | int, _Node]]


_Node = TensorPlace | _Scalar | _Sequence | _Mapping
_decoder: msgspec.msgpack.Decoder[_Node] = msgspec.msgpack.Decoder(_Node)


def flatten(tree: Tree, *, named: str) -> tuple[bytes, list[torch.Tensor]]:
    """Skeleton and tensors. `named` says whose state it is, for the error about something that is not allowed."""
    tensors: list[torch.Tensor] = []
    node = _to_node(tree, tensors, named)
    return msgspec.msgpack.encode(node), tensors


def _to_node(tree: Tree, tensors: list[torch.Tensor], path: str) -> _Node:
    if isinstance(tree, torch.Tensor):
        tensors.append(tree.detach())
        return TensorPlace(number=len(tensors) - 1, shape=tuple(tree.shape), dtype=str(tree.dtype)[6:])
    if tree is None or isinstance(tree, bool | int | float | str):
        return _Scalar(_plain(tree))
    if isinstance(tree, list | tuple):
        items = [_to_node(item, tensors, f"{path}[{index}]") for index, item in enumerate(tree)]
        return _Sequence(items=items, is_tuple=isinstance(tree, tuple))
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str | int):
                raise UsageError(f"{path} has the key {key!r}; keys of a state are strings or integers")
        return _Mapping([(key, _to_node(value, tensors, f"{path}[{key!r}]")) for key, value in tree.items()])
    raise UsageError(
        f"{path} is a {type(tree).__name__}; a state holds numbers, strings, tensors, lists and dictionaries only"
    )


def _plain(value: bool | int | float | str | None) -> bool | int | float | str | None:
    """Subclasses such as numpy's float64 or an enum of strings become the plain type."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def tensor_places(skeleton: bytes) -> list[TensorPlace]:
    """Where tensors belong, in the order of their numbers."""
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


def _decode(skeleton: bytes) -> _Node:
    try:
        return _decoder.decode(skeleton)
    except msgspec.MsgspecError as error:
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
    if isinstance(node, _Sequence):
        items = [_from_node(item, tensors) for item in node.items]
        return tuple(items) if node.is_tuple else items
    return {key: _from_node(value, tensors) for key, value in node.items}
