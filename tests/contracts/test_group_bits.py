"""What ranks hold after a reduction is the same in every bit: signed zeros, NaNs' payloads and denormals too.

Every exchanger, type, reduction and size: through memory the result is that of combining in the order of the ranks; a
schedule combines in its own order, which is the same for everybody, with the lower rank's value first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as some

from shoal.collectives.assembly import GroupConfig, group_over
from shoal.collectives.group import Group, Reduction
from shoal.collectives.memory.memory_loops import BLOCK_BYTES, MemoryWays
from shoal.collectives.schedules.choice import Chooser
from shoal.collectives.schedules.schedule import Program, boundaries
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.links.plan import FIXED, IN_RANK_ORDER
from shoal.transport.mesh.in_process import in_process_meshes
from shoal.transport.mesh.mesh import Mesh
from shoal.transport.native_layout import SLOT_BYTES
from support.bits import COMPLEX, DTYPES, bits_of, combined, folded, reductions_of, tensor_of
from support.collectives import GROUP_KINDS, IN_MEMORY, KINDS_OF_MEMORY, Sum, groups, plan_of, replay, succeed
from support.memory_groups import neighbourhoods

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
RELAYED = pytest.param(("relay", "auto"), id="relay-auto", marks=pytest.mark.long)
PIECE, SMALL, READ = MemoryWays.piece, MemoryWays.small, MemoryWays.block  # sizes at which a way changes, in bytes
THRESHOLDS = (READ, SMALL, BLOCK_BYTES, PIECE, SLOT_BYTES, 2 * SLOT_BYTES, 3 * PIECE)
PHASES = (Phase.explicit, Phase.generate)  # each example costs a group: what fails is printed as it is
Case = tuple[torch.dtype, Reduction, int, int]  # type, reduction, elements, seed


@pytest.fixture(params=[*GROUP_KINDS, RELAYED])
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    before = set(threading.enumerate())
    yield request.param
    assert set(threading.enumerate()) <= before


@some.composite
def cases(draw: some.DrawFn) -> Case:
    dtype = draw(some.sampled_from(DTYPES))
    reduction = draw(some.sampled_from(reductions_of(dtype)))
    near = some.builds(
        lambda limit, by: limit // dtype.itemsize + by, some.sampled_from(THRESHOLDS), some.integers(-2, 2)
    )
    elements = draw(some.integers(0, 40) | some.integers(0, 2000) | near)
    return dtype, reduction, elements, draw(some.integers(0, 1000))


def inputs_of(case: Case, size: int) -> list[torch.Tensor]:
    """By rank; each lies elsewhere in relation to a line of memory."""
    dtype, _, elements, seed = case
    return [tensor_of(dtype, elements, 100 * seed + rank, shift=3 * rank) for rank in range(size)]


def in_order(case: Case, inputs: Sequence[torch.Tensor], order: Sum) -> torch.Tensor:
    if isinstance(order, int):
        return inputs[order]
    left, right = (in_order(case, inputs, part) for part in order)
    return combined(case[0], case[1], left, right)


def by_schedule(case: Case, inputs: Sequence[torch.Tensor], programs: Sequence[Program]) -> torch.Tensor:
    orders = replay(programs)
    assert all(order == orders[0] for order in orders)
    dtype, _, elements, _ = case
    whole = {order: in_order(case, inputs, order) for order in set(orders[0])}
    item, flat = dtype.itemsize, torch.empty(elements * dtype.itemsize, dtype=torch.uint8)
    for order, (start, stop) in zip(orders[0], boundaries(elements, programs[0].segments), strict=True):
        flat[start * item : stop * item] = whole[order][start:stop].view(torch.uint8)
    return flat.view(dtype)


def expected_of(kind: tuple[str, str], case: Case, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    size, (dtype, reduction, elements, _) = len(inputs), case
    if kind[0] == "two-level":  # machines of three ranks, at most two of them
        return folded(dtype, reduction, [folded(dtype, reduction, inputs[i : i + 3]) for i in range(0, size, 3)])
    if kind[0] in KINDS_OF_MEMORY:
        return folded(dtype, reduction, inputs)
    choosers = [Chooser(kind[1], size, rank, plan_of(size)) for rank in range(size)]
    return by_schedule(case, inputs, [chooser.all_reduce(elements * dtype.itemsize) for chooser in choosers])


def is_defined(case: Case) -> bool:
    """What a product of complex numbers with NaNs is stays the library's, the same on all ranks."""
    return not (case[0] in COMPLEX and case[1] is Reduction.PRODUCT)


def check_bits(made: Sequence[ThreadedGroup], kind: tuple[str, str], case: Case) -> None:
    inputs = inputs_of(case, len(made))
    expected = expected_of(kind, case, inputs) if is_defined(case) else None

    def reduce(group: ThreadedGroup) -> None:
        # Half of the ranks work in their own thread: which thread it is must not show.
        way: Group = group.here if group.rank % 2 else group
        way.all_reduce(inputs[group.rank], label="bits", reduction=case[1]).wait()

    succeed(*(lambda group=group: reduce(group) for group in made))
    found = [bits_of(tensor) for tensor in inputs]
    assert all(np.array_equal(bits, found[0]) for bits in found), "ranks hold different bits"
    if expected is not None:
        assert np.array_equal(found[0], bits_of(expected)), "the result was not made in its order"


def test_all_reduce_leaves_the_same_bits_everywhere(kind: tuple[str, str]) -> None:
    @settings(max_examples=6, phases=PHASES)
    @given(some.integers(2, 5), some.lists(cases(), min_size=3, max_size=8))
    @example(
        2, [(torch.float32, reduction, n, n) for reduction in reductions_of(torch.float32) for n in (1, 2, 17, 1000)]
    )
    @example(3, [(dtype, Reduction.SUM, 77, 7) for dtype in DTYPES])
    @example(4, [(dtype, Reduction.MAX, 77, 7) for dtype in DTYPES if dtype not in COMPLEX])
    def check(size: int, wanted: list[Case]) -> None:
        with groups(kind[0], size, kind[1]) as made:
            for case in wanted:
                check_bits(made, kind, case)

    check()


@contextmanager
def machines(hosts: list[list[int]]) -> Iterator[list[ThreadedGroup]]:
    """The group of a job with --deterministic whose ranks are on these machines."""
    meshes = list(in_process_meshes(sum(map(len, hosts))))
    hoods = neighbourhoods(meshes, hosts)
    config = GroupConfig(deterministic=True)

    def make(mesh: Mesh) -> ThreadedGroup:
        hood = hoods[mesh.rank]
        plan = IN_RANK_ORDER if config.sums_in_rank_order(hood) else FIXED
        return group_over(mesh, hood, replace(config, plan=plan))

    made = succeed(*(lambda mesh=mesh: make(mesh) for mesh in meshes))
    with ExitStack() as stack:
        for group in made:
            stack.callback(group.close)
            stack.callback(group.abort, "the test is over")
        yield made


@pytest.mark.parametrize(
    "hosts", [[[0, 1, 2, 3, 4]], [[0, 2], [1, 4], [3]], [[0, 1, 2], [3, 4]], [[4], [0], [1, 2, 3]]]
)
def test_a_deterministic_job_has_the_same_bits_on_any_machines(hosts: list[list[int]]) -> None:
    with machines(hosts) as made:
        for dtype in DTYPES:
            for elements in (1, 77, 3 * PIECE // dtype.itemsize + 1):
                check_bits(made, (IN_MEMORY, "auto"), (dtype, Reduction.SUM, elements, 7))


def test_reduce_scatter_gives_the_bits_of_its_order(kind: tuple[str, str]) -> None:
    @settings(max_examples=4, phases=PHASES)
    @given(some.integers(2, 5), some.lists(cases(), min_size=1, max_size=4))
    @example(3, [(dtype, Reduction.SUM, 77, 7) for dtype in DTYPES])
    def check(size: int, wanted: list[Case]) -> None:
        with groups(kind[0], size, kind[1]) as made:
            for case in wanted:
                check_scattered(made, kind, case)

    check()


def check_scattered(made: Sequence[ThreadedGroup], kind: tuple[str, str], case: Case) -> None:
    size, (dtype, reduction, elements, seed) = len(made), case
    parts = [inputs_of((dtype, reduction, elements, seed + 7 * place), size) for place in range(size)]  # by target
    outputs = [part[0].clone() for part in parts]
    label = "scattered"
    pending = [
        group.reduce_scatter(
            outputs[group.rank], [part[group.rank] for part in parts], label=label, reduction=reduction
        )
        for group in made
    ]
    for each in pending:
        each.wait()
    if not is_defined(case):
        return
    for target in range(size):
        if kind[0] in KINDS_OF_MEMORY:
            expected = expected_of(kind, case, parts[target])
        else:
            choosers = [Chooser(kind[1], size, rank, plan_of(size)) for rank in range(size)]
            orders = replay([chooser.reduce_scatter() for chooser in choosers])
            expected = in_order(case, parts[target], orders[target][target])
        assert np.array_equal(bits_of(outputs[target]), bits_of(expected)), f"of rank {target}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_scaled_contributions_leave_the_same_bits_everywhere(kind: tuple[str, str], dtype: torch.dtype) -> None:
    for size in (2, 3):
        with groups(kind[0], size, kind[1]) as made:
            for elements in (1, 33, SMALL // 4 + 3):
                case = (dtype, Reduction.SUM, elements, elements)
                inputs = inputs_of(case, size)
                scales = [0.5, 1.0 / 3.0, 1.0][:size]
                scaled = [tensor * scale for tensor, scale in zip(inputs, scales, strict=True)]
                on_all(made, lambda group, t=inputs, s=scales: scaled_all_reduce(group, t[group.rank], s[group.rank]))
                for tensor in inputs:
                    assert np.array_equal(bits_of(tensor), bits_of(expected_of(kind, case, scaled))), elements


def test_means_have_the_same_bits_everywhere(kind: tuple[str, str]) -> None:
    """Every rank divides the sum by itself, in whichever thread."""

    def reduce(group: ThreadedGroup, tensor: torch.Tensor) -> None:
        torch.set_flush_denormal(group.rank == 1)  # of this thread alone
        group.here.all_reduce(tensor, label="mean", reduction=Reduction.MEAN)

    for size in (2, 3):
        with groups(kind[0], size, kind[1]) as made:
            for dtype in (torch.complex64, torch.complex128, torch.int16):
                inputs = inputs_of((dtype, Reduction.SUM, 1000, 5), size)
                on_all(made, lambda group, t=inputs: reduce(group, t[group.rank]))
                found = [bits_of(tensor) for tensor in inputs]
                assert all(np.array_equal(bits, found[0]) for bits in found), dtype


def scaled_all_reduce(group: ThreadedGroup, tensor: torch.Tensor, scale: float) -> None:
    group.here.all_reduce(tensor, label="scaled", scale=scale)


def on_all(made: Sequence[ThreadedGroup], call: Callable[[ThreadedGroup], None]) -> None:
    succeed(*(lambda group=group: call(group) for group in made))


def test_a_rank_whose_thread_takes_denormals_for_zero_holds_the_same_bits(kind: tuple[str, str]) -> None:
    """Which thread adds is chance: it may be the caller's, which was told so, or the group's, which was not."""

    def reduce(group: ThreadedGroup, tensor: torch.Tensor) -> None:
        torch.set_flush_denormal(group.rank == 0)  # of this thread alone
        group.here.all_reduce(tensor, label="denormals")

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        with groups(kind[0], 2, kind[1]) as made:
            smallest = torch.finfo(dtype).smallest_normal
            inputs = [torch.full((1000,), smallest / 4, dtype=dtype) for _ in range(2)]
            expected = expected_of(kind, (dtype, Reduction.SUM, 1000, 0), [tensor.clone() for tensor in inputs])
            on_all(made, lambda group, t=inputs: reduce(group, t[group.rank]))
            for tensor in inputs:
                assert np.array_equal(bits_of(tensor), bits_of(expected)), dtype
