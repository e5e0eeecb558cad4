"""What a codec encodes in a group: sums that have a key, where they cross from host to host, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch

from shoal.codecs.codec import Codec, TensorKey
from shoal.codecs.identity import Identity, memory_of
from shoal.collectives.assembly import GroupConfig, group_over
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import ExchangeFailed, WireError, WorkersDisagree
from shoal.transport.mesh.in_process import in_process_meshes
from support.collectives import groups, in_threads, succeed
from support.memory_groups import neighbourhoods
from support.sparse_codec import Sparse

KINDS = [("in-process", "auto"), ("in-process", "halving-doubling"), ("tcp", "auto"), ("two-level", "auto")]
SIZE = 5  # two-level: machines of three and of two ranks
ELEMENTS = 10_007


class Counting(Codec):
    """Bytes that are not the tensor's own, without loss; it notes its keys."""

    name = "counting"
    wire_id = 200

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[TensorKey] = []

    def most_bytes(self, elements: int, dtype: torch.dtype) -> int:
        return elements * dtype.itemsize

    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        self.keys.append(key)
        return memoryview(bytes(memory_of(tensor))[::-1])

    def decode(self, key: TensorKey, data: memoryview, tensor: torch.Tensor) -> None:
        Identity().decode(key, memoryview(bytes(data)[::-1]), tensor)


@pytest.fixture(params=KINDS, ids="-".join)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


def gradients(rank: int, step: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1000 * step + rank))


def reduced(made: list[ThreadedGroup], step: int, **options: object) -> list[torch.Tensor]:
    """In two tensors each, as gradients of several parameters are."""
    tensors = [gradients(group.rank, step) for group in made]
    pending = [
        group.all_reduce([tensor[:3001], tensor[3001:]], label="gradients", **options)  # type: ignore[arg-type]
        for group, tensor in zip(made, tensors, strict=True)
    ]
    for each in pending:
        each.wait()
    return tensors


def test_without_loss_sums_are_those_in_the_order_of_the_ranks(kind: tuple[str, str]) -> None:
    with groups(kind[0], SIZE, kind[1], codec=Counting) as made:
        sums = reduced(made, 0, key="model/gradients", scale=0.5)
    machines = [(0, 1, 2), (3, 4)] if kind[0] == "two-level" else [(rank,) for rank in range(SIZE)]
    expected: torch.Tensor | None = None
    for machine in machines:
        inside = gradients(machine[0], 0) * 0.5
        for rank in machine[1:]:
            inside = inside + gradients(rank, 0) * 0.5
        expected = inside if expected is None else expected + inside
    assert expected is not None
    assert all(torch.equal(each, expected) for each in sums)


def test_replicas_stay_equal_and_what_is_left_out_comes_later(kind: tuple[str, str]) -> None:
    arrived, exact = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    errors = []
    with groups(kind[0], SIZE, kind[1], codec=Sparse) as made:
        for step in range(12):
            sums = reduced(made, step, key="model/gradients")
            assert all(torch.equal(each, sums[0]) for each in sums), "everybody decodes the same bytes"
            arrived += sums[0]
            exact += sum(gradients(rank, step) for rank in range(SIZE))
            errors.append(float((arrived - exact).norm() / (arrived.norm() + exact.norm())))
    assert errors[0] > 0.05, "the codec does leave something out"
    assert errors[-1] < errors[0]


def test_what_has_no_key_travels_as_it_is(kind: tuple[str, str]) -> None:
    with groups(kind[0], SIZE, kind[1], codec=Sparse) as made, groups(kind[0], SIZE, kind[1]) as plain:
        for one, other in zip(reduced(made, 0), reduced(plain, 0), strict=True):
            assert torch.equal(one, other)
        counts = [torch.arange(100) for _ in made]
        for pending in [group.broadcast(count, 0, label="order") for group, count in zip(made, counts, strict=True)]:
            pending.wait()


@pytest.fixture
def two_machines() -> Iterator[tuple[list[ThreadedGroup], list[Counting]]]:
    """Ranks 0 and 1 on one, 2 and 3 on the other."""
    meshes = list(in_process_meshes(4))
    hoods = neighbourhoods(meshes, [[0, 1], [2, 3]])
    codecs = [Counting() for _ in meshes]
    given = [
        (mesh, hood, GroupConfig(codec=codec, deterministic=True))
        for mesh, hood, codec in zip(meshes, hoods, codecs, strict=True)
    ]
    made = succeed(*(lambda each=each: group_over(*each) for each in given))
    with ExitStack() as stack:
        for group in made:
            stack.callback(group.close)
            stack.callback(group.abort, "the test is over")
        yield made, codecs


def test_inside_a_machine_memory_stays_memory(two_machines: tuple[list[ThreadedGroup], list[Counting]]) -> None:
    made, codecs = two_machines
    reduced(made, 0, key="model/gradients")
    reduced(made, 1, key="model/gradients")
    leaders = [codec.keys for codec in codecs]
    assert not leaders[1]
    assert not leaders[3]
    assert [key.leg.value for key in leaders[0]] == ["contribution", "sum"] * 2
    assert leaders[0][:2] == leaders[0][2:], "the same key means the same elements in every step"
    assert {key.tensors for key in leaders[2]} == {"model/gradients"}
    # What one leader sends of a part, the other owns.
    assert (leaders[0][0].start, leaders[0][1].start) == (leaders[2][1].start, leaders[2][0].start)


class Chatty(Counting):
    """It makes more bytes than it says."""

    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        return memoryview(bytes(super().encode(key, tensor)) + b"!")


class Liar(Counting):
    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        return super().encode(key, tensor)[1:]


@pytest.mark.parametrize(("codec", "text"), [(Chatty, "at most"), (Liar, "bytes arrived")])
def test_bytes_that_a_codec_cannot_have_made_are_refused_with_the_rank(codec: Callable[[], Codec], text: str) -> None:
    with groups("in-process", 2, codec=codec) as made:
        calls = [lambda group=group: group.all_reduce(torch.ones(64), label="g", key="g").wait() for group in made]
        results = in_threads(*calls)
    assert all(isinstance(result, ExchangeFailed | WireError) for result in results)
    assert any(isinstance(one, WireError) and "from rank" in str(one) and text in str(one) for one in results)


def test_ranks_with_different_codecs_are_told_so() -> None:
    codecs: list[Codec] = [Counting(), Identity()]
    with groups("in-process", 2, codec=codecs.pop) as made:
        calls = [lambda group=group: group.all_reduce(torch.ones(64), label="g", key="g").wait() for group in made]
        results = in_threads(*calls)
    assert any(isinstance(result, WorkersDisagree | WireError) and "codec" in str(result) for result in results)
