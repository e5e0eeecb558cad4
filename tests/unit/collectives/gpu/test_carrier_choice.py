"""Which carrier a group takes for tensors of GPUs: NCCL exactly where every rank can use it, else a reason why not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.collectives.carriers.gpu_facts import facts_of, own_facts
from shoal.collectives.gpu.carrier_choice import NCCL, NOT_TRUSTED, OWN, RankGpu, choose_carrier, why_not_nccl
from shoal.errors import WireError
from support.examples import scaled

Change = Callable[[RankGpu, list[RankGpu]], RankGpu]


def fit(count: int, machines: int) -> list[RankGpu]:
    """Ranks that can use NCCL, spread over machines."""
    return [RankGpu(f"host-{rank % machines}", f"GPU-{rank}", "2.28.9", is_open=True) for rank in range(count)]


ranks_of_any_kind = some.lists(
    some.builds(
        RankGpu,
        host=some.sampled_from(["a", "b"]),
        gpu=some.sampled_from(["", "G1", "G2", "G3", "G4"]),
        nccl=some.sampled_from(["", "2.27.3", "2.28.9"]),
        is_wanted=some.booleans(),
        is_open=some.booleans(),
    ),
    min_size=1,
    max_size=6,
)
OBSTACLES: dict[str, Change] = {
    "no GPU": lambda one, _: msgspec.structs.replace(one, gpu=""),
    "share a GPU": lambda one, others: msgspec.structs.replace(one, gpu=others[0].gpu),
    "without NCCL": lambda one, _: msgspec.structs.replace(one, nccl=""),
    "has NCCL 2.27.3": lambda one, _: msgspec.structs.replace(one, nccl="2.27.3"),
    "SHOAL_NCCL=0": lambda one, _: msgspec.structs.replace(one, is_wanted=False),
    "not allowed them": lambda one, _: msgspec.structs.replace(one, is_open=False),
}


@settings(max_examples=scaled(300), deadline=None)
@given(ranks_of_any_kind, some.integers(1, 4), some.sampled_from(["", "--schedule ring is asked for"]))
def test_nccl_is_taken_exactly_where_every_rank_can_use_it(ranks: list[RankGpu], machines: int, kept: str) -> None:
    choice = choose_carrier(ranks, machines=machines, kept=kept)
    is_possible = (
        all(one.gpu and one.nccl and one.is_wanted for one in ranks)
        and len({one.gpu for one in ranks}) == len(ranks)
        and len({one.nccl for one in ranks}) == 1
        and not kept
        and (machines == 1 or all(one.is_open for one in ranks))
    )
    assert choice.carrier == (NCCL if is_possible else OWN)
    assert choice.reason
    if choice.carrier == NCCL:
        assert why_not_nccl(ranks) == ""
        assert f"{len(ranks)} ranks" in choice.reason
        assert ranks[0].nccl in choice.reason


@settings(max_examples=scaled(200), deadline=None)
@given(some.data(), some.sampled_from(sorted(OBSTACLES)), some.integers(2, 8), some.integers(2, 3))
def test_one_rank_that_stands_in_the_way_is_named(data: some.DataObject, what: str, count: int, machines: int) -> None:
    ranks = fit(count, machines)
    culprit = data.draw(some.integers(1, count - 1))
    ranks[culprit] = OBSTACLES[what](ranks[culprit], [one for rank, one in enumerate(ranks) if rank != culprit])
    choice = choose_carrier(ranks, machines=machines)
    assert choice.carrier == OWN
    assert what in choice.reason
    assert f"{'and' if 'share' in what else 'rank'} {culprit} on host-{culprit % machines}" in choice.reason


@settings(max_examples=scaled(100), deadline=None)
@given(some.data(), ranks_of_any_kind, some.integers(1, 4))
def test_the_order_of_ranks_does_not_change_the_carrier(
    data: some.DataObject, ranks: list[RankGpu], machines: int
) -> None:
    other = data.draw(some.permutations(ranks))
    assert choose_carrier(other, machines=machines).carrier == choose_carrier(ranks, machines=machines).carrier


def test_between_machines_nccl_needs_a_network_that_is_trusted() -> None:
    closed = [msgspec.structs.replace(one, is_open=False) for one in fit(4, 2)]
    assert choose_carrier(closed, machines=2).reason == NOT_TRUSTED
    assert choose_carrier(closed, machines=1).carrier == NCCL, "inside a machine nothing leaves it"
    assert why_not_nccl(closed) == "", "whoever asks with --carrier nccl gets it"


def test_several_ranks_without_a_gpu_are_counted() -> None:
    none = [RankGpu("a", "", "") for _ in range(3)]
    assert why_not_nccl(none) == "no rank has a GPU"
    assert why_not_nccl([*fit(2, 1), *none]) == "rank 2 on a and 2 other ranks have no GPU"


def test_a_rank_of_a_machine_without_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_NCCL", "0")
    monkeypatch.setenv("SHOAL_PLAINTEXT", "1")
    (told,) = facts_of([own_facts(None)])
    assert (told.gpu, told.nccl, told.is_wanted, told.is_open) == ("", "", False, True)


def test_facts_that_cannot_be_read_name_their_rank() -> None:
    fine = own_facts(None)
    with pytest.raises(WireError, match="rank 1 described its GPU in 3 bytes"):
        facts_of([fine, b"\xc1ab"])
