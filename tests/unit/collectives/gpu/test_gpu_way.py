"""A group's calls on tensors that are taken for those of a GPU: the way through host memory, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from shoal.collectives import flat_tensors, operations
from shoal.collectives.gpu import gpu_way
from shoal.collectives.threaded_group import ThreadedGroup
from support.collectives import IN_MEMORY, groups
from support.slow_copies import SlowCopies


class StandIn:
    """Tensors in its list count as a GPU's."""

    def __init__(self) -> None:
        self.there: list[torch.Tensor] = []
        self.entered = 0

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self.there.append(tensor)
        return tensor

    def has(self, tensor: torch.Tensor) -> bool:
        return any(tensor is known for known in self.there)

    def moment_of(self, tensors: Sequence[torch.Tensor], label: str) -> object | None:
        return self if any(map(self.has, tensors)) else None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @contextmanager
    def copies_after(self, moment: object) -> Iterator[SlowCopies]:
        self.entered += 1
        yield SlowCopies(self.entered)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(operations, "moment_of", stand_in.moment_of)
    is_flat = flat_tensors.is_flat
    monkeypatch.setattr(flat_tensors, "is_flat", lambda tensor: is_flat(tensor) and not stand_in.has(tensor))
    monkeypatch.setattr(gpu_way, "copies_after", stand_in.copies_after)
    monkeypatch.setenv("SHOAL_NCCL", "0")
    return stand_in


@pytest.fixture(params=[IN_MEMORY, "two-level", "in-process"])
def made(request: pytest.FixtureRequest) -> Iterator[list[ThreadedGroup]]:
    with groups(request.param, 2) as found:
        yield found


def test_collectives_of_gpu_and_cpu_tensors_take_turns(gpu: StandIn, made: list[ThreadedGroup]) -> None:
    for number in range(4):
        count = 3_000_000 if number % 2 else 10  # in several turns, and in one
        tensors = [torch.full((count,), float(rank + 1)) for rank in range(2)]
        in_memory = [torch.ones(5) for _ in range(2)]
        started = [
            group.all_reduce(gpu.put(tensor), label=f"there {number}")
            for group, tensor in zip(made, tensors, strict=True)
        ]
        started += [
            group.all_reduce(tensor, label=f"here {number}") for group, tensor in zip(made, in_memory, strict=True)
        ]
        for pending in started:
            pending.wait()
        assert all(torch.equal(tensor, torch.full((count,), 3.0)) for tensor in tensors)
        assert all(torch.equal(tensor, torch.full((5,), 2.0)) for tensor in in_memory)
    assert gpu.entered == 8


def test_a_tensor_that_is_not_contiguous_is_written_back(gpu: StandIn, made: list[ThreadedGroup]) -> None:
    wholes = [torch.arange(12.0).view(3, 4) for _ in range(2)]
    pendings = [group.all_reduce(gpu.put(whole.t()), label="turned") for group, whole in zip(made, wholes, strict=True)]
    for pending in pendings:
        pending.wait()
    assert all(torch.equal(whole, 2 * torch.arange(12.0).view(3, 4)) for whole in wholes)


def test_the_other_end_of_a_send_may_be_in_memory(gpu: StandIn, made: list[ThreadedGroup]) -> None:
    """As in copies of the state to a worker that comes in; before any collective on a GPU."""
    received = torch.zeros(1000)
    sending = made[0].send(gpu.put(torch.ones(1000)), 1, label="state")
    assert made[1].receive(received, 0, label="state").wait(30)
    assert sending.wait(30)
    assert torch.equal(received, torch.ones(1000))
