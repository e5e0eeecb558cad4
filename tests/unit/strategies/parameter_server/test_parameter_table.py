"""What servers are told of a script's models and optimizers, and what cannot be handed to them."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from shoal.errors import UsageError
from shoal.strategies import texts
from shoal.strategies.parameter_server.parameter_table import entries_of, group_values, rule_name, step_values, table_of


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_each_parameter_has_its_optimizer_and_group() -> None:
    model = two_layers()
    first = torch.optim.SGD([{"params": [model[0].weight]}, {"params": [model[0].bias], "lr": 0.5}], lr=0.1)
    second = torch.optim.AdamW(model[1].parameters())
    table = table_of(entries_of({"model 1": model}, [first, second]), [first, second])
    places = {tensor.name: (tensor.optimizer, tensor.group) for tensor in table.tensors}
    assert places == {
        "model 1/0.weight": (0, 0),
        "model 1/0.bias": (0, 1),
        "model 1/1.weight": (1, 0),
        "model 1/1.bias": (1, 0),
    }
    assert [rule.name for rule in table.rules] == ["SGD", "AdamW"]
    assert table.rules[0].groups[1]["lr"] == 0.5


def test_what_is_frozen_or_in_no_optimizer_stays_on_the_workers() -> None:
    model = two_layers()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].weight, model[0].bias], lr=0.1)
    assert [entry.name for entry in entries_of({"model 1": model}, [optimizer])] == ["model 1/0.weight"]


def test_a_tied_parameter_counts_once() -> None:
    model = two_layers()
    model[1].weight = nn.Parameter(torch.zeros(4, 3))
    model[0].weight = model[1].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = [entry.name for entry in entries_of({"model 1": model}, [optimizer])]
    assert names == ["model 1/0.weight", "model 1/0.bias", "model 1/1.bias"]


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    model = two_layers()
    both = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model[0].parameters())]
    with pytest.raises(UsageError, match=re.escape(texts.in_two_optimizers(next(model.parameters()).shape))):
        entries_of({"model 1": model}, both)


def test_optimizers_that_cannot_work_on_parts_are_named_with_what_to_do() -> None:
    model = two_layers()
    with pytest.raises(UsageError, match=r"LBFGS.*all-reduce"):
        rule_name(torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("flag", ["capturable", "differentiable"])
def test_values_that_no_server_can_run_are_the_scripts_mistake_before_a_server_is_asked(flag: str) -> None:
    model = two_layers()
    optimizers = [torch.optim.SGD(model[0].parameters(), maximize=True), torch.optim.AdamW(model[1].parameters())]
    entries = entries_of({"model 1": model}, optimizers)
    table = table_of(entries, optimizers)
    optimizers[1].param_groups[0][flag] = True
    with pytest.raises(UsageError, match=rf"optimizer 2 \(AdamW\) has {flag}=True.*leave {flag} out.*all-reduce"):
        table_of(entries, optimizers)
    with pytest.raises(UsageError, match=f"{flag}=True"):
        step_values(table, 1, optimizers[1], 1.0)


def test_a_value_that_changes_what_an_optimizer_keeps_may_not_change_while_training() -> None:
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    table = table_of(entries_of({"model 1": model}, [optimizer]), [optimizer])
    assert step_values(table, 0, optimizer, 3.0)[0]["lr"] == pytest.approx(0.3)
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(UsageError, match=r"optimizer 1 \(Adam\).*leave amsgrad"):
        step_values(table, 0, optimizer, 1.0)


def test_code_is_not_sent_to_servers() -> None:
    class Own(torch.optim.SGD):
        pass

    with pytest.raises(UsageError, match=re.escape(texts.not_of_torch(Own))):
        rule_name(Own(two_layers().parameters(), lr=0.1))


def test_values_of_groups_are_numbers_with_the_factor_on_the_learning_rate() -> None:
    optimizer = torch.optim.Adam(two_layers().parameters(), lr=torch.tensor(0.25), betas=(0.5, 0.75), foreach=False)
    (values,) = group_values(optimizer, 2.0)
    assert values["lr"] == 0.5
    assert values["betas"] == (0.5, 0.75)
    optimizer.param_groups[0]["note"] = "text"
    with pytest.raises(UsageError, match=re.escape(texts.no_number("note", "text"))):
        group_values(optimizer)
