"""Blocks with state survive the way through bytes, and bytes that are not theirs are refused."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ServerRefused, ShoalError
from shoal.parameters.blocks.block_state import BlockState, TensorJoin, cut, pack, payload_bytes, unpack
from shoal.parameters.blocks.byte_views import tensor_over
from shoal.parameters.blocks.table_blocks import blocks_of
from support.examples import scaled
from support.shards import table_of

ADAM = [("Adam", [{"lr": 0.1}])]


def adam_state(shape: tuple[int, ...], step: float, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {
        "step": torch.tensor(step),
        "exp_avg": torch.randn(shape).to(dtype),
        "exp_avg_sq": torch.randn(shape).to(dtype),
    }


@settings(max_examples=scaled(40), deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 60), max_size=2).map(tuple), min_size=1, max_size=5),
    dtype=st.sampled_from(["float32", "bfloat16", "complex64"]),
    with_state=st.lists(st.booleans(), min_size=5, max_size=5),
    data=st.data(),
)
def test_tensors_are_cut_packed_unpacked_and_joined(
    shapes: list[tuple[int, ...]], dtype: str, with_state: list[bool], data: st.DataObject
) -> None:
    table = table_of(shapes, ADAM, dtype=dtype)
    kind = getattr(torch, dtype)
    values = {spec.name: torch.randn(spec.shape).to(kind) for spec in table.tensors}
    states = {
        spec.name: adam_state(spec.shape, number / 2, kind) if with_state[number] else {}
        for number, spec in enumerate(table.tensors)
    }
    order = data.draw(st.permutations(range(len(blocks_of(table)))))
    cuts = []
    for number in order:
        name = table.tensors[blocks_of(table)[number].tensor].name
        cuts.append(cut(table, number, values[name], states[name]))
    described, payload = pack(table, order, cuts)
    assert len(payload) == payload_bytes(table, order, described)
    join = TensorJoin(table)
    for number, state in zip(order, unpack(table, order, described, tensor_over(payload)), strict=True):
        join.add(number, state)
    found = join.tensors()
    assert found.keys() == values.keys()
    for name, whole in found.items():
        assert torch.equal(whole[""], values[name])
        assert whole.keys() - {""} == states[name].keys()
        assert all(torch.equal(whole[key], value) for key, value in states[name].items())


def test_a_tensor_that_is_a_single_number_keeps_its_state_apart_from_its_step() -> None:
    table = table_of([()], ADAM)
    state = cut(table, 0, torch.tensor(5.0), adam_state((), 3))
    assert state.tensors.keys() == {"exp_avg", "exp_avg_sq"} and state.scalars == {"step": 3.0}
    assert state.values.shape == (1,)


def test_state_that_is_not_laid_out_in_order_is_cut_by_elements() -> None:
    table = table_of([(4, 6)], [("SGD", [{"lr": 0.1}])])
    turned = torch.arange(24.0).reshape(6, 4).t()
    assert cut(table, 0, turned, {"momentum_buffer": turned}).tensors["momentum_buffer"].tolist() == [
        *turned.reshape(-1).tolist()
    ]


def test_none_in_an_optimizers_state_is_no_state() -> None:
    table = table_of([(4,)], [("SGD", [{"lr": 0.1}])])
    state = cut(table, 0, torch.ones(4), {"momentum_buffer": None})  # type: ignore[dict-item]  # as torch's SGD once kept it
    assert state.tensors == {}


def test_blocks_that_are_missing_are_named() -> None:
    table = table_of([(2048,)], ADAM)
    join = TensorJoin(table)
    join.add(0, BlockState(torch.zeros(1024)))
    with pytest.raises(ShoalError, match=r"1 blocks .* such as 1"):
        join.tensors()


FORM = [1, ["exp_avg", "exp_avg_sq"], [["step", 1.0]]]


@pytest.mark.parametrize(
    ("forms", "why"),
    [
        ([], "0 blocks came with 1"),
        ([FORM, FORM], "2 blocks came with 1"),
        ([[0, [], []], FORM], "came with 1"),
        ([[-1, [], []], FORM, FORM], "not a description"),
        ([[1, ["exp_avg"], [["step", 1.0]]]], "needs exp_avg, exp_avg_sq, step"),
        ([[1, ["exp_avg", "exp_avg"], [["step", 1.0]]]], "needs"),
        ([[1, ["exp_avg", "exp_avg_sq"], []]], "needs"),
        ([[1, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"], [["step", 1.0]]]], "another optimizer"),
        ([[1, ["momentum_buffer"], []]], "another optimizer"),
        ([[1, [], [["step", "x"]]]], "not a description"),
        ("garbage", "not a description"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(forms: object, why: str) -> None:
    table = table_of([(4,)], ADAM)
    with pytest.raises(ServerRefused, match=why) as caught:
        payload_bytes(table, [0], msgspec.msgpack.encode(forms))
    assert caught.value.kind == "bad-request"


def test_a_payload_of_another_length_is_refused() -> None:
    table = table_of([(4,)], ADAM)
    described = msgspec.msgpack.encode([FORM])
    assert payload_bytes(table, [0], described) == 48
    with pytest.raises(ServerRefused, match="40 bytes of state"):
        unpack(table, [0], described, torch.empty(40, dtype=torch.uint8))


def test_a_description_of_many_like_blocks_is_short() -> None:
    table = table_of([(1 << 20,)], ADAM)
    numbers = range(len(blocks_of(table)))
    value, state = torch.zeros(1 << 20), adam_state((1 << 20,), 7)
    described, _ = pack(table, numbers, [cut(table, number, value, state) for number in numbers])
    assert len(numbers) == 1024 and len(described) < 100
