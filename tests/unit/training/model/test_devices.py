"""Which device a worker has, and what goes there. `meta` stands for a GPU: its tensors can be moved there anywhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from shoal.environment import local_place
from shoal.training.model import devices

CPU, GPU = torch.device("cpu"), torch.device("meta")


class Pair(NamedTuple):
    x: torch.Tensor
    y: str


class Own:
    """As the batches of some libraries."""

    device: Any = None

    def to(self, device: torch.device) -> Own:
        self.device = device
        return self


def test_without_a_gpu_all_is_on_the_cpu_and_stays_the_same_object() -> None:
    batch = (torch.ones(2), {"a": [torch.ones(1)]})
    assert devices.moved(batch, CPU) is batch
    model = nn.Linear(2, 2)
    assert devices.placed(model, CPU) is model


def test_every_tensor_of_a_batch_is_moved() -> None:
    batch = {"a": [torch.ones(1), "text", 5], "b": Pair(torch.ones(2), "label"), "c": (torch.ones(3), None), "d": Own()}
    found = devices.moved(batch, GPU)
    assert found["a"][0].device == found["b"].x.device == found["c"][0].device == found["d"].device == GPU
    assert found["a"][1:] == ["text", 5]
    assert isinstance(found["b"], Pair)
    assert found["b"].y == "label"
    assert isinstance(found["c"], tuple)


def test_a_model_goes_to_the_device_unless_the_script_has_placed_it() -> None:
    model = nn.Linear(2, 2)
    weight = model.weight
    assert devices.placed(model, GPU).weight.device == GPU
    assert model.weight.shape == weight.shape
    half_there = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("meta"))
    assert devices.placed(half_there, GPU)[0].weight.device == CPU


def test_workers_of_a_machine_take_its_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [devices.chosen_gpu(place, 2) for place in range(4)] == [0, 1, 0, 1]
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_place() == 3
    monkeypatch.delenv("LOCAL_RANK")
    assert local_place() == 0


def test_seeding_without_a_gpu_is_seeding_the_cpu() -> None:
    devices.seed(CPU, 5)
    first = torch.rand(3)
    devices.seed(CPU, 5)
    assert torch.equal(torch.rand(3), first)
