"""What servers compute on their parts is what torch computes on whole tensors, wherever the blocks are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.parameters.blocks.byte_views import bytes_of, tensor_over
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.transport.memory.arena import PeerArena, word_at
from shoal.wire.tables import PushTerms, TableSpec
from support.shards import RULE_CASES, Parts, Whole, table_of

SHAPES = [(1000, 3), (7,), (), (64, 50), (1,)]
CASE_NAMES = [f"{name}-{'-'.join(values)}" for name, values in RULE_CASES]


def draw_tensors(table: TableSpec, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtypes = {spec.name: getattr(torch, spec.dtype) for spec in table.tensors}
    return {spec.name: torch.randn(spec.shape, generator=generator).to(dtypes[spec.name]) for spec in table.tensors}


def draw_holders(table: TableSpec, servers: int, replicas: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(servers, generator=generator)[:replicas].tolist() for _ in blocks_of(table)]


def terms_of(table: TableSpec, lr: float | None = None, **more: Any) -> PushTerms:
    groups = tuple(
        tuple(
            values if lr is None else {**values, "lr": lr * (number + 1)} for number, values in enumerate(rule.groups)
        )
        for rule in table.rules
    )
    return PushTerms(groups=groups, **more)


def run_beside(table: TableSpec, parts: Parts, whole: Whole, first: int, steps: int) -> None:
    """Updates with a schedule of learning rates and a factor for each."""
    for step in range(first, first + steps):
        gradients = draw_tensors(table, 100 + step)
        terms, factor = terms_of(table, lr=0.1 / (step + 1)), 1.0 / (1 + step % 3)
        parts.update([gradients], [terms], factor)
        whole.update(gradients, terms.groups, factor)


@pytest.mark.parametrize(("name", "values"), RULE_CASES, ids=CASE_NAMES)
def test_every_rule_on_parts_gives_what_torch_gives_on_whole_tensors(name: str, values: dict[str, Any]) -> None:
    table = table_of(
        SHAPES, [(name, [values, {**values, "lr": 0.05}])], owners=[(0, 0), (0, 1), (0, 0), (0, 1), (0, 0)]
    )
    tensors = draw_tensors(table, 1)
    parts, whole = Parts(table, draw_holders(table, 3, 2, 5)), Whole(table, tensors)
    parts.assign(tensors)
    run_beside(table, parts, whole, 0, 5)
    whole.check(parts.tensors())
    for one, other in zip(parts.tensors(0).values(), parts.tensors(1).values(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one), "replicas differ in their bits"


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "complex64"])
@pytest.mark.parametrize(("name", "values"), [RULE_CASES[1], RULE_CASES[5], RULE_CASES[13]])
def test_other_dtypes_give_what_torch_gives_and_replicas_have_the_same_bits(
    name: str, values: dict[str, Any], dtype: str
) -> None:
    if dtype == "complex64" and name == "RMSprop":
        values = {}  # torch has no centered one for them
    table = table_of(SHAPES, [(name, [values])], dtype=dtype)
    tensors = draw_tensors(table, 1)
    parts, whole = Parts(table, draw_holders(table, 3, 2, 5)), Whole(table, tensors)
    parts.assign(tensors)
    run_beside(table, parts, whole, 0, 3)
    whole.check(parts.tensors(), **({"rtol": 0.1, "atol": 0.05} if "float16" in dtype else {}))
    for one, other in zip(parts.tensors(0).values(), parts.tensors(1).values(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


@settings(max_examples=15, deadline=None)
@given(
    case=st.sampled_from(RULE_CASES),
    shapes=st.lists(st.tuples(st.integers(1, 3000)), min_size=1, max_size=4),
    servers=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_any_split_over_servers_gives_the_same(
    case: tuple[str, dict[str, Any]], shapes: list[tuple[int]], servers: int, seed: int
) -> None:
    table = table_of(shapes, [(case[0], [case[1]])])
    tensors = draw_tensors(table, seed)
    parts, whole = Parts(table, draw_holders(table, servers, 1, seed)), Whole(table, tensors)
    parts.assign(tensors)
    run_beside(table, parts, whole, 0, 3)
    whole.check(parts.tensors())


@pytest.mark.parametrize(("name", "values"), RULE_CASES, ids=CASE_NAMES)
def test_blocks_that_move_with_their_state_go_on_as_if_they_had_stayed(name: str, values: dict[str, Any]) -> None:
    table = table_of(SHAPES, [(name, [values])])
    tensors = draw_tensors(table, 1)
    parts, whole = Parts(table, draw_holders(table, 3, 1, 5)), Whole(table, tensors)
    parts.assign(tensors)
    run_beside(table, parts, whole, 0, 2)
    moved = Parts(table, draw_holders(table, 4, 1, 6))
    for part in moved.parts.values():
        for number in part.layout.blocks:
            source = parts.parts[parts.holders[number][0]].shard
            part.shard.ask([number])
            part.shard.insert([number], *source.extract([number]), applied=2)
        assert part.shard.absent() == ()
    run_beside(table, moved, whole, 2, 2)
    whole.check(moved.tensors())


@pytest.mark.parametrize(("name", "values"), RULE_CASES, ids=CASE_NAMES)
def test_a_state_of_torch_is_assigned_and_goes_on(name: str, values: dict[str, Any]) -> None:
    table = table_of(SHAPES, [(name, [values])])
    whole = Whole(table, draw_tensors(table, 1))
    for step in range(2):
        whole.update(draw_tensors(table, 100 + step), terms_of(table).groups)
    optimizer = whole.optimizers[0]
    parts = Parts(table, draw_holders(table, 2, 1, 5))
    parts.assign(
        {key: parameter.data for key, parameter in whole.parameters.items()},
        {key: optimizer.state[parameter] for key, parameter in whole.parameters.items()},
    )
    run_beside(table, parts, whole, 2, 2)
    whole.check(parts.tensors())


def test_tensors_with_different_steps_in_one_unit_keep_their_own() -> None:
    table = table_of([(100,), (128,), (64,)], [("Adam", [{"lr": 0.1}])])
    whole = Whole(table, draw_tensors(table, 1))
    for step, names in enumerate([["t0", "t1", "t2"], ["t1"]]):
        for name, gradient in draw_tensors(table, step).items():
            whole.parameters[name].grad = gradient if name in names else None
        whole.optimizers[0].step()
    states = {name: whole.optimizers[0].state[parameter] for name, parameter in whole.parameters.items()}
    parts = Parts(table, [[0]] * 3)
    parts.assign({name: parameter.data for name, parameter in whole.parameters.items()}, states)
    run_beside(table, parts, whole, 0, 2)
    found = parts.tensors()
    whole.check(found)
    assert [float(found[f"t{number}"]["step"]) for number in range(3)] == [3, 4, 3]


@pytest.mark.parametrize("fused", [True, False])
def test_blocks_with_and_without_momentum_in_one_unit(fused: bool) -> None:
    table = table_of([(100,), (128,)], [("SGD", [{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "fused": fused}])])
    whole = Whole(table, draw_tensors(table, 1))
    whole.parameters["t0"].grad = draw_tensors(table, 2)["t0"]
    whole.optimizers[0].step()
    parts = Parts(table, [[0]] * 2)
    parts.assign(
        {name: parameter.data for name, parameter in whole.parameters.items()},
        {"t0": whole.optimizers[0].state[whole.parameters["t0"]]},
    )
    gradients, terms = draw_tensors(table, 3), terms_of(table)
    parts.update([gradients], [terms])
    for name in whole.parameters:  # one at a time: torch's fused SGD takes no mixture
        for other, parameter in whole.parameters.items():
            parameter.grad = gradients[other] if other == name else None
        whole.optimizers[0].step()
    whole.check(parts.tensors())


def test_pushes_are_summed_in_order_with_their_scales() -> None:
    table = table_of(SHAPES, [("SGD", [{"lr": 1.0}])])
    tensors = draw_tensors(table, 1)
    parts = Parts(table, draw_holders(table, 2, 1, 5))
    parts.assign(tensors)
    pushes = [draw_tensors(table, 10 + worker) for worker in range(3)]
    scales = [1.0, 0.25, -2.0]
    parts.update(pushes, [terms_of(table, scale=scale) for scale in scales])
    for name, found in parts.tensors().items():
        total = torch.add(pushes[0][name], pushes[1][name], alpha=0.25).add_(pushes[2][name], alpha=-2.0)
        assert torch.equal(found[""], tensors[name] - total)


def test_half_gradients_are_summed_without_losing_small_ones() -> None:
    table = table_of([(64,)], [("SGD", [{"lr": 1.0}])], dtype="bfloat16")
    parts = Parts(table, [[0]])
    parts.assign({"t0": torch.zeros(64, dtype=torch.bfloat16)})
    pushes = [{"t0": torch.full((64,), value, dtype=torch.bfloat16)} for value in [256.0, 1.0, 1.0]]
    parts.update(pushes, [terms_of(table)] * 3)
    assert parts.tensors()["t0"][""].unique().tolist() == [-258.0]  # 256 + 1 is 256 in bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_clipping_is_by_the_norm_of_the_sum_over_all_servers(dtype: str) -> None:
    rules = [("SGD", [{"lr": 1.0}]), ("SGD", [{"lr": 1.0}])]
    table = table_of(SHAPES, rules, dtype=dtype, owners=[(0, 0), (0, 0), (1, 0), (1, 0), (0, 0)])
    tensors = {name: torch.zeros_like(tensor) for name, tensor in draw_tensors(table, 1).items()}
    parts = Parts(table, draw_holders(table, 3, 2, 5))
    parts.assign(tensors)
    pushes = [draw_tensors(table, 10 + worker) for worker in range(2)]
    parts.update(pushes, [terms_of(table, scale=0.5, clip_norms=(1.5, None))] * 2)
    wide = {"float32": torch.float64, "bfloat16": torch.float64, "complex64": torch.complex128}[dtype]
    sums = {name: (0.5 * (pushes[0][name].to(wide) + pushes[1][name].to(wide))) for name in tensors}
    clipped = [sums[spec.name] for spec in table.tensors if spec.optimizer == 0]
    norm = torch.sqrt(sum(tensor.abs().square().sum() for tensor in clipped))
    for spec in table.tensors:
        wanted = -sums[spec.name] * (1.5 / (norm + 1e-6) if spec.optimizer == 0 else 1.0)
        tolerance = {"rtol": 0.02, "atol": 1e-3} if dtype == "bfloat16" else {}
        torch.testing.assert_close(parts.tensors()[spec.name][""], wanted.to(tensors[spec.name].dtype), **tolerance)


def test_an_optimizer_without_groups_and_a_push_without_gradients_leave_values_alone() -> None:
    table = table_of([(64,), (64,)], [("SGD", [{"lr": 1.0}]), ("Adam", [{"lr": 1.0}])], owners=[(0, 0), (1, 0)])
    parts = Parts(table, [[0]] * 2)
    parts.assign({name: torch.zeros(64) for name in ("t0", "t1")})
    ones = {name: torch.ones(64) for name in ("t0", "t1")}
    parts.update([ones], [PushTerms(groups=(({"lr": 1.0},), ()))])
    assert parts.tensors()["t0"][""].unique().tolist() == [-1.0]
    assert parts.tensors()["t1"].keys() == {""}, "no step: no state"
    assert not parts.tensors()["t1"][""].any()
    nothing, both = PushTerms(groups=()), terms_of(table)
    parts.update([ones, ones], [nothing, both])
    assert parts.tensors()["t0"][""].unique().tolist() == [-2.0]
    parts.update([{"t0": ones["t0"]}], [both])  # the worker staged nothing of t1
    assert parts.tensors()["t0"][""].unique().tolist() == [-3.0]
    assert float(parts.tensors()["t1"]["step"]) == 1


@pytest.mark.parametrize("case", [RULE_CASES[1], RULE_CASES[3], RULE_CASES[7], RULE_CASES[11]])
@pytest.mark.parametrize("sent", [2, 3, 5])
def test_updates_that_pass_while_blocks_are_under_way_are_applied_to_them_once(
    case: tuple[str, dict[str, Any]], sent: int
) -> None:
    """Asked for after update 2; the source answers after update `sent`; the answer comes after update 5."""
    table = table_of(SHAPES, [(case[0], [case[1]])])
    tensors = draw_tensors(table, 1)
    blocks = range(len(blocks_of(table)))
    # The newcomer gets every push from the start but has no blocks.
    parts, whole = Parts(table, [[0, 1] for _ in blocks]), Whole(table, tensors)
    source, newcomer = parts.parts[0].shard, parts.parts[1].shard
    parts.parts[0].assign(tensors, {})
    run_beside(table, parts, whole, 0, 2)
    half = list(newcomer.layout.blocks)[::2]
    newcomer.ask(half)
    for step in range(2, 5):
        if step == sent:
            early = source.extract(half)
        run_beside(table, parts, whole, step, 1)
    if sent == 5:
        early = source.extract(half)
    newcomer.insert(half, *early, applied=sent)
    others = [number for number in newcomer.layout.blocks if number not in half]
    assert sorted(newcomer.absent()) == sorted(others)
    run_beside(table, parts, whole, 5, 1)
    newcomer.ask(others)
    newcomer.insert(others, *source.extract(others), applied=6)
    assert newcomer.absent() == ()
    run_beside(table, parts, whole, 6, 1)
    whole.check(parts.tensors(0))
    for one, other in zip(parts.tensors(0).values(), parts.tensors(1).values(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_an_assignment_beats_a_block_that_was_under_way() -> None:
    table = table_of([(64,)], [("SGD", [{"lr": 1.0}])])
    parts = Parts(table, [[0, 1]])
    parts.parts[0].assign({"t0": torch.zeros(64)}, {})
    newcomer = parts.parts[1].shard
    newcomer.ask([0])
    old = parts.parts[0].shard.extract([0])
    parts.assign({"t0": torch.ones(64)})
    newcomer.insert([0], *old, applied=0)
    assert parts.tensors(1)["t0"][""].unique().tolist() == [1.0]


def test_a_new_layout_takes_what_the_old_one_has_and_lacks_the_rest() -> None:
    table = table_of(SHAPES, [("Adam", [{"lr": 0.1}])])
    tensors = draw_tensors(table, 1)
    holders = draw_holders(table, 2, 1, 3)
    parts, whole = Parts(table, holders), Whole(table, tensors)
    parts.assign(tensors)
    run_beside(table, parts, whole, 0, 2)
    everything = Parts(table, [[0] for _ in holders])
    wide = everything.parts[0].shard
    for unit in range(len(wide.layout.units)):
        wide.take_unit(parts.parts[0].shard, unit)
    assert sorted(wide.absent()) == [number for number, some in enumerate(holders) if some == [1]]
    for unit in range(len(wide.layout.units)):
        wide.take_unit(parts.parts[1].shard, unit)
    run_beside(table, everything, whole, 2, 1)
    whole.check(everything.tensors())


def test_held_bytes_are_parameters_and_state_and_kept_updates() -> None:
    table = table_of([(2048,), (60,)], [("Adam", [{"lr": 0.1}])])
    parts = Parts(table, [[0, 1]] * 3)
    shard, newcomer = parts.parts[0].shard, parts.parts[1].shard
    size = (2048 + 60) * 4
    parts.parts[0].assign(draw_tensors(table, 1), {})
    assert shard.held_bytes == size
    newcomer.ask([2])
    parts.update([draw_tensors(table, 2)], [terms_of(table)])
    assert shard.held_bytes == 3 * size + 2 * 4  # the last block is a run of its own, each run has its own step
    assert newcomer.held_bytes == size + 60 * 4


def test_workers_read_values_from_the_arena_and_see_from_the_seal_that_they_change() -> None:
    table = table_of([(3000,), (50,)], [("SGD", [{"lr": 1.0}]), ("SGD", [{"lr": 1.0}])], owners=[(0, 0), (1, 0)])
    parts = Parts(table, [[0]] * len(blocks_of(table)), is_shared=True)
    shard = parts.parts[0].shard
    assert shard.memory.offer is not None
    arena = PeerArena.open(shard.memory.offer)
    assert arena is not None
    seals = [word_at(arena.address + shard.memory.seal_place(unit)) for unit in range(2)]
    parts.assign({"t0": torch.zeros(3000), "t1": torch.zeros(50)})
    before = [seal.value for seal in seals]
    assert all(seal % 2 == 0 for seal in before)
    during: list[int] = []
    shard.memory.break_seal(0)
    during.append(seals[0].value)
    shard.memory.seal(0)
    assert during[0] % 2 == 1
    parts.update([{"t0": torch.ones(3000)}], [terms_of(table)])
    assert seals[0].value > before[0] + 2 and seals[0].value % 2 == 0
    assert seals[1].value == before[1], "the other unit did not change"
    place = shard.memory.place(shard.layout.offset(0))
    values = tensor_over(arena.memory[place : place + 12000]).view(torch.float32)
    assert values.unique().tolist() == [-1.0]
    assert bytes(shard.read(0, 1)) == bytes(arena.memory[place : place + 4096])
    del values
    arena.close()
    parts.close()


def test_memory_that_is_still_looked_at_outlives_a_closed_shard() -> None:
    table = table_of([(64,)], [("SGD", [{"lr": 1.0}])])
    parts = Parts(table, [[0]], is_shared=True)
    parts.assign({"t0": torch.ones(64)})
    seen = parts.parts[0].shard.read(0, 1)
    parts.close()
    parts.close()
    assert bytes(seen) == bytes(bytes_of(torch.ones(64)))


def test_the_seal_is_broken_while_a_unit_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of([(64,)], [("SGD", [{"lr": 1.0}])])
    parts = Parts(table, [[0]], is_shared=True)
    parts.assign({"t0": torch.ones(64)})
    memory = parts.parts[0].shard.memory
    assert memory.offer is not None
    arena = PeerArena.open(memory.offer)
    assert arena is not None
    seal = word_at(arena.address + memory.seal_place(0))
    seen: list[int] = []
    step = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: (seen.append(seal.value), step(self)))
    parts.update([{"t0": torch.ones(64)}], [terms_of(table)])
    assert len(seen) == 1 and seen[0] % 2 == 1
    assert seal.value == seen[0] + 1
    arena.close()
    parts.close()
