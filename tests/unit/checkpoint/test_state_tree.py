"""States as skeleton and tensors: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.checkpoint.peer_copy import copy_state
from shoal.checkpoint.state_tree import dtype_named, flatten, flatten_named, tensor_places, unflatten, unflatten_named
from shoal.codecs.identity import Identity
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import ShoalError, UsageError, WireError
from shoal.transport.mesh.in_process import in_process_meshes

TENSORS = st.sampled_from(
    [torch.arange(6).view(2, 3), torch.tensor(1.5), torch.zeros(0, 4, dtype=torch.bfloat16), torch.tensor([True])]
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | TENSORS
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


@given(TREES)
def test_what_goes_in_comes_out(tree: Any) -> None:
    skeleton, tensors = flatten(tree, named="the state")
    assert same(tree, unflatten(skeleton, tensors))
    for place, tensor in zip(tensor_places(skeleton), tensors, strict=True):
        assert (place.shape, dtype_named(place.dtype)) == (tuple(tensor.shape), tensor.dtype)


@pytest.mark.parametrize(
    ("tree", "text"),
    [({"a": [1, object()]}, r"the state\['a'\]\[1\] is a object"), ({1.5: 2}, "key 1.5"), (lambda: None, "function")],
)
def test_anything_else_is_refused_by_place_and_type(tree: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        flatten(tree, named="the state")


@given(st.binary(max_size=64))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    try:
        tensor_places(data)
    except ShoalError:
        return
    assert msgspec.msgpack.decode(data)["type"] in ("scalar", "list", "dict", "tensor")


@pytest.mark.parametrize("name", ["nn", "float99", "__class__", "Tensor"])
def test_a_dtype_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        dtype_named(name)


def test_a_state_travels_from_those_who_have_it_to_those_who_need_it() -> None:
    """Tensors that all givers have alike come from each of them; the rest, which may differ, from the source."""

    def state(rank: int) -> dict[str, Any]:
        models = {name: torch.full((100,), float(number)) for number, name in enumerate("abcd")}
        kept = torch.tensor([rank])
        return {"models": models, "kept": [{"step": 3, "name": "x"}, kept, torch.ones(2, 2).t()]}

    groups = [ThreadedGroup.over(mesh, 1, "auto", Identity()) for mesh in in_process_meshes(5)]
    received: dict[int, Any] = {}

    def take_part(rank: int) -> None:
        own = state(rank) if rank in (1, 3) else None
        received[rank] = copy_state(own, givers=(3, 1), receivers=(0, 4), group=groups[rank])

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = [group.bytes_sent for group in groups]
    for group in groups:
        group.close()
    assert [rank for rank in range(5) if received[rank] is None] == [1, 2, 3]
    assert same(received[0].state, state(3)) and same(received[4].state, state(3))
    assert min(sent[1], sent[3]) >= 2 * 2 * 400, "each giver sends about half"


def test_integers_of_any_size_and_what_json_cannot_say() -> None:
    tree = {"seed": 2**130, "low": -(2**70), "best": float("inf"), "none": float("nan"), "deep": [(1, "x"), {3: None}]}
    flat = flatten_named(tree, named="it")
    again = unflatten_named(flat.skeleton, flat.tensors)
    assert again["none"] != again["none"]
    assert {**again, "none": 0} == {**tree, "none": 0}
    skeleton, tensors = flatten(tree, named="it")
    assert unflatten(skeleton, tensors)["seed"] == 2**130


def test_names_are_paths_and_order_is_kept() -> None:
    flat = flatten_named({"b": torch.zeros(1), "a": [torch.ones(2)]}, named="it")
    assert flat.names == ["b", "a/0"]


@pytest.mark.parametrize("tree", ["\ud800", {"\ud800": 1}])
def test_what_is_no_text_is_refused(tree: Any) -> None:
    with pytest.raises(UsageError, match="it"):
        flatten(tree, named="it")
