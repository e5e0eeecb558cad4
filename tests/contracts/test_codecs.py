"""The contract of every codec: bytes within the bound, the same bits for all who decode, a residual that is state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.codecs.codec import Codec, Leg, TensorKey
from shoal.codecs.identity import Identity
from shoal.errors import WireError
from support.examples import scaled
from support.packed_codec import Packed
from support.sparse_codec import Sparse

CODECS: list[Callable[[], Codec]] = [Identity, Sparse, lambda: Sparse(Sparse.Settings(above=0.2)), Packed]
IDS = ["identity", "sparse", "sparse-dense", "packed"]
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
GRADIENTS = TensorKey("model/gradients", Leg.CONTRIBUTION)


@pytest.fixture(params=CODECS, ids=IDS)
def make(request: pytest.FixtureRequest) -> Callable[[], Codec]:
    made: Callable[[], Codec] = request.param
    return made


def through(codec: Codec, key: TensorKey, tensor: torch.Tensor) -> tuple[bytes, torch.Tensor]:
    """What travels, and what arrives."""
    data = bytes(codec.encode(key, tensor))
    assert len(data) <= codec.most_bytes(len(tensor), tensor.dtype)
    arrived = torch.full_like(tensor, 7)
    codec.decode(key, memoryview(data), arrived)
    return data, arrived


def gradients(step: int, elements: int = 1000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(elements, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("elements", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("leg", Leg)
def test_every_receiver_gets_the_same_bits(
    make: Callable[[], Codec], leg: Leg, elements: int, dtype: torch.dtype
) -> None:
    codec, key = make(), TensorKey("model/gradients", leg)
    given_tensor = gradients(0, elements, dtype)
    before = given_tensor.clone()
    data, arrived = through(codec, key, given_tensor)
    assert torch.equal(given_tensor, before), "encoding changes nothing of what it was given"
    other = torch.zeros_like(arrived)
    make().decode(key, memoryview(bytearray(data)), other)  # whoever decodes needs no state
    assert torch.equal(other.view(torch.uint8), arrived.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("leg", Leg)
def test_one_that_says_it_is_lossless_is(make: Callable[[], Codec], leg: Leg, dtype: torch.dtype) -> None:
    codec, key = make(), TensorKey("model/gradients", leg)
    if not codec.is_lossless:
        return
    strange = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45], dtype=dtype)
    for tensor in (gradients(0, dtype=dtype), gradients(1, dtype=dtype), strange):
        assert torch.equal(through(codec, key, tensor)[1].view(torch.uint8), tensor.view(torch.uint8))
    assert not codec.state()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.0, 1e38])
def test_a_value_out_of_the_ordinary_arrives_as_one(make: Callable[[], Codec], value: float) -> None:
    codec, tensor = make(), gradients(1)
    tensor[3] = value
    _, arrived = through(codec, GRADIENTS, tensor)
    if not torch.isfinite(tensor).all():  # training must see it: it would be lost in a residual
        assert not torch.isfinite(arrived).all()
    _, arrived = through(codec, GRADIENTS, gradients(2))
    assert torch.isfinite(arrived).all(), "one step's accident does not stay in the residual"


def test_what_is_left_out_comes_later(make: Callable[[], Codec]) -> None:
    codec, sent, arrived = make(), torch.zeros(1000), torch.zeros(1000)
    errors = []
    for step in range(40):
        tensor = gradients(step)
        sent += tensor
        arrived += through(codec, GRADIENTS, tensor)[1]
        errors.append(float((sent - arrived).norm()))
    assert max(errors[20:]) < 4 * max(errors[:10], default=0.0) + 1e-3, "what is missing does not grow with the steps"


def test_keys_have_nothing_to_do_with_each_other(make: Callable[[], Codec]) -> None:
    codec, alone = make(), make()
    for step in range(3):
        for key in (
            TensorKey("model/other", Leg.CONTRIBUTION),
            TensorKey("model/gradients", Leg.SUM),
            TensorKey("model/gradients", Leg.VALUES),
        ):
            codec.encode(key, gradients(100 + step))
        assert through(codec, GRADIENTS, gradients(step))[0] == through(alone, GRADIENTS, gradients(step))[0]


def test_its_state_goes_on_bit_for_bit_and_goes_back(make: Callable[[], Codec]) -> None:
    codec = make()
    for step in range(5):
        through(codec, GRADIENTS, gradients(step))
    state = codec.state()
    copies = {name: tensor.clone() for name, tensor in state.items()}
    later = [through(codec, GRADIENTS, gradients(step))[0] for step in range(5, 8)]
    assert all(torch.equal(tensor, copies[name]) for name, tensor in state.items()), "a state that was given stays"
    other = make()
    other.load(copies)
    assert [through(other, GRADIENTS, gradients(step))[0] for step in range(5, 8)] == later
    codec.load(state)  # a void step
    assert [through(codec, GRADIENTS, gradients(step))[0] for step in range(5, 8)] == later
    codec.load({})
    assert through(codec, GRADIENTS, gradients(0))[0] == through(make(), GRADIENTS, gradients(0))[0]


def test_values_that_replace_others_leave_no_state(make: Callable[[], Codec]) -> None:
    codec = make()
    assert (
        through(codec, TensorKey("block", Leg.VALUES), gradients(0))[0]
        == through(codec, TensorKey("block", Leg.VALUES), gradients(0))[0]
    )
    assert not codec.state()


def test_a_state_of_something_else_is_ignored(make: Callable[[], Codec]) -> None:
    codec = make()
    codec.load(
        {"": torch.zeros(3), "contribution x y": torch.zeros(2, 2), "contribution 0 model/gradients": torch.zeros(2, 2)}
    )
    assert through(codec, GRADIENTS, gradients(0))[0] == through(make(), GRADIENTS, gradients(0))[0]


def test_a_cut_that_moves_keeps_what_was_left_out(make: Callable[[], Codec]) -> None:
    """As when the number of workers changes: the same elements travel in other frames."""
    codec, sent, arrived = make(), torch.zeros(1000), torch.zeros(1000)
    for step in range(30):
        tensor, cut = gradients(step), (250, 500, 333)[step // 10]
        sent += tensor
        for start in range(0, 1000, cut):
            key = TensorKey("model/gradients", Leg.CONTRIBUTION, start)
            arrived[start : start + cut] += through(codec, key, tensor[start : start + cut])[1]
    lacking = torch.zeros(1000)
    for name, left_out in codec.state().items():
        start = int(name.split()[1])
        lacking[start : start + len(left_out)] += left_out
    torch.testing.assert_close(arrived + lacking, sent, rtol=1e-4, atol=1e-3)


@settings(max_examples=scaled(100), deadline=None)
@given(data=some.binary(max_size=64), elements=some.integers(0, 12), number=some.integers(0, len(CODECS) - 1))
def test_any_bytes_decode_or_are_refused(data: bytes, elements: int, number: int) -> None:
    tensor = torch.zeros(elements)
    try:
        CODECS[number]().decode(GRADIENTS, memoryview(data), tensor)
    except WireError:
        return
    assert tensor.shape == (elements,)


def test_bytes_that_were_cut_short_are_refused(make: Callable[[], Codec]) -> None:
    codec = make()
    data, _ = through(codec, GRADIENTS, gradients(0))
    for length in (0, len(data) - 1):
        with pytest.raises(WireError):
            codec.decode(GRADIENTS, memoryview(data)[:length], torch.zeros(1000))
