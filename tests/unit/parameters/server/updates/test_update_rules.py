"""Which optimizers servers take, what they say about others, and what state is counted for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoal.errors import ServerRefused
from shoal.parameters import texts
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.server.updates.update_rules import (
    RULES,
    check_rule,
    check_table,
    check_terms,
    clip_factor,
    make_optimizer,
    needed_bytes,
    present_values,
)
from shoal.wire.tables import PushTerms, RuleSpec, TableSpec, TensorSpec
from support.shards import RULE_CASES, table_of


@pytest.mark.parametrize(("name", "values"), RULE_CASES)
def test_a_rule_knows_the_state_that_torch_keeps(name: str, values: dict[str, Any]) -> None:
    parameter = torch.nn.Parameter(torch.ones(10))
    optimizer = make_optimizer(name, [parameter], present_values(name, values, "float32"))
    parameter.grad = torch.ones(10)
    optimizer.step()
    kept = {key: value for key, value in optimizer.state[parameter].items() if value is not None}
    assert {key for key, value in kept.items() if value.dim()} == set(RULES[name].kept(values))
    assert {key for key, value in kept.items() if not value.dim()} == set(RULES[name].scalars)
    table = table_of([(10,)], [(name, [values])])
    assert needed_bytes(table, [0]) == 40 + sum(40 for value in kept.values() if value.dim())


def test_all_rules_are_classes_of_torch_and_tried_here() -> None:
    assert all(issubclass(getattr(torch.optim, name), torch.optim.Optimizer) for name in RULES)
    assert {name for name, _ in RULE_CASES} == set(RULES)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("LBFGS", "all parameters at once"),
        ("Muon", "whole matrices"),
        ("Adafactor", "rows and columns"),
        ("SparseAdam", "sparse"),
        ("MyOwn", "not one of torch.optim"),
        ("os.system", "not one of torch.optim"),
    ],
)
def test_what_cannot_run_in_parts_is_refused_with_the_alternative(name: str, why: str) -> None:
    with pytest.raises(ServerRefused, match=why) as caught:
        check_rule(name)
    assert caught.value.kind == "rule"
    assert name in str(caught.value) and "--strategy all-reduce" in str(caught.value) and "AdamW" in str(caught.value)


@pytest.mark.parametrize("flag", ["capturable", "differentiable"])
def test_flags_about_graphs_are_refused(flag: str) -> None:
    with pytest.raises(ServerRefused) as caught:
        check_table(table_of([(4,)], [("Adam", [{"lr": 0.1, flag: True}])]))
    assert (caught.value.kind, str(caught.value)) == ("rule", texts.flag_of_one_process("Adam", 0, flag))


def test_tables_that_a_server_cannot_hold_are_refused() -> None:
    good = table_of([(4,)], [("Adam", [{"lr": 0.1}])])
    check_table(good)
    adam = RuleSpec("Adam", ({"lr": 0.1},))
    for table, why in [
        (TableSpec("sparse", good.tensors, good.rules, 4096), "dense"),
        (TableSpec("dense", (TensorSpec("a", (4,), "float32", 1, 0),), (adam,), 4096), "optimizer 1"),
        (TableSpec("dense", (TensorSpec("a", (4,), "float32", 0, 1),), (adam,), 4096), "group 1"),
        (TableSpec("dense", (TensorSpec("a", (-4,), "float32", 0, 0),), (adam,), 4096), "shape"),
        (TableSpec("dense", (TensorSpec("a", (4,), "int8", 0, 0),), (adam,), 4096), "int8"),
        (TableSpec("dense", good.tensors, good.rules, 100), "100 bytes"),
    ]:
        with pytest.raises(ServerRefused, match=why) as caught:
            check_table(table)
        assert caught.value.kind == "table"


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        (PushTerms(groups=(({"lr": 0.1},),)), "1 optimizers"),
        (PushTerms(groups=(({"lr": 0.1}, {"lr": 0.1}), ())), "2 groups"),
        (PushTerms(groups=(), clip_norms=(1.0,)), "clip_norms"),
        (PushTerms(groups=(({"lr": None},), ())), "lr=None"),
        (PushTerms(groups=(({"lr": True},), ())), "lr=True"),
        (PushTerms(groups=(({"betas": (0.9,)},), ())), "betas"),
        (PushTerms(groups=(({"betas": 0.9},), ())), "betas"),
        (PushTerms(groups=(({"maximize": 1.5},), ())), "maximize"),
        (PushTerms(groups=(({"capturable": True},), ())), "capturable"),
        (PushTerms(groups=(({"amsgrad": True},), ())), "leave amsgrad"),
        (PushTerms(groups=((), ({"momentum": 0.5},))), "use of momentum"),
    ],
)
def test_terms_that_could_not_be_applied_are_refused(terms: PushTerms, why: str) -> None:
    table = table_of([(4,), (4,)], [("Adam", [{"lr": 0.1}]), ("RMSprop", [{"lr": 0.1}])], owners=[(0, 0), (1, 0)])
    with pytest.raises(ServerRefused, match=why):
        check_terms(table, terms)


def test_terms_may_change_numbers_leave_optimizers_out_and_bring_keys_of_schedulers() -> None:
    table = table_of([(4,), (4,)], [("Adam", [{"lr": 0.1}]), ("SGD", [{"lr": 0.1}])], owners=[(0, 0), (1, 0)])
    check_terms(table, PushTerms(groups=()))
    check_terms(table, PushTerms(groups=((), ()), clip_norms=(None, 1.0)))
    check_terms(table, PushTerms(groups=(({"lr": 0, "betas": (0.5, 0.6), "initial_lr": 0.1},), ())))
    check_terms(table, PushTerms(groups=((), ({"lr": 0.1, "momentum": 0.9},))))  # momentum may begin later in SGD
    assert "initial_lr" not in present_values("Adam", {"initial_lr": 0.1}, "float32")


def test_the_fused_loop_is_used_where_it_helps_and_is_right() -> None:
    def is_fused(name: str, dtype: str = "float32", **values: Any) -> bool:
        return bool(present_values(name, values, dtype).get("fused"))

    assert is_fused("Adam") and is_fused("AdamW") and is_fused("Adagrad") and is_fused("SGD", weight_decay=0.1)
    assert not is_fused("SGD") and is_fused("SGD", fused=True)
    assert not is_fused("Adam", fused=False) and not is_fused("Adam", foreach=True)
    assert not is_fused("Adam", "bfloat16", fused=True) and not is_fused("Adam", "complex64")
    assert not is_fused("RMSprop")


def test_the_factor_is_on_the_learning_rate_alone() -> None:
    plain, scaled = (present_values("AdamW", {"lr": 0.5}, "float32", factor) for factor in (1.0, 0.25))
    assert scaled == {**plain, "lr": 0.125}


@pytest.mark.parametrize("most", [0.1, 1.0, 1e9])
def test_clipping_is_torchs(most: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    parameter.grad = gradient = torch.randn(50, dtype=torch.float64)
    wanted = gradient * clip_factor(most, float(gradient.square().sum()))
    torch.nn.utils.clip_grad_norm_([parameter], most)
    torch.testing.assert_close(parameter.grad, wanted)
    assert clip_factor(None, 100.0) == 1.0


def test_needed_bytes_go_by_block_and_group() -> None:
    groups = [{"lr": 0.1, "amsgrad": True}, {"lr": 0.1}]
    table = table_of([(2048,), (10,)], [("Adam", groups)], owners=[(0, 0), (0, 1)])
    assert [block.size for block in blocks_of(table)] == [4096, 4096, 40]
    assert needed_bytes(table, [0, 2]) == 4096 * 4 + 40 * 3
