"""A model's modules, parameters and buffers are those that torch names, in torch's order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.strategies.replica.model_walk import buffers_of, modules_of, parameters_of


def tangled() -> nn.Module:
    """Shared modules, tied weights, modules and parameters that are None, buffers at several levels."""
    model = nn.Module()
    shared = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.first = nn.ModuleDict({"a": shared, "b": nn.Linear(3, 2, bias=False)})
    model.second = shared
    model.nothing = None
    model.add_module("missing", None)
    model.third = nn.Linear(2, 3)
    model.third.weight = shared[0].weight
    model.register_buffer("table", torch.zeros(3))
    model.third.register_buffer("same", model.table)
    model.third.register_buffer("none", None)
    return model


MODELS = [tangled(), nn.Transformer(8, 2, 1, 1, 8, batch_first=True), nn.Linear(2, 2), nn.Identity()]


@pytest.mark.parametrize("model", MODELS)
def test_what_is_found_is_what_torch_finds(model: nn.Module) -> None:
    modules = modules_of(model)
    for found, expected in (
        (modules, model.modules()),
        (parameters_of(modules), model.parameters()),
        (buffers_of(modules), model.buffers()),
    ):
        assert [id(one) for one in found] == [id(one) for one in expected]


def test_a_compiled_script_has_the_same_parameters() -> None:
    """Of such modules every look at a parameter makes another object, so that values tell."""
    with pytest.warns(DeprecationWarning):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    for found, expected in (
        (parameters_of(modules_of(scripted)), scripted.parameters()),
        (buffers_of(modules_of(scripted)), scripted.buffers()),
    ):
        assert [one.data_ptr() for one in found] == [one.data_ptr() for one in expected]
