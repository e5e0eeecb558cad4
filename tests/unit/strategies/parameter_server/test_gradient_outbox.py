"""Gradients leave in backward as they come, scaled, once; changes afterwards are noticed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from shoal.errors import UsageError
from shoal.strategies import texts
from shoal.strategies.parameter_server.gradient_outbox import GradientOutbox, Noise
from shoal.strategies.parameter_server.parameter_table import entries_of
from shoal.strategies.strategy import Iteration


class Recorded:
    """Where a push is recorded instead of sent."""

    def __init__(self) -> None:
        self.put_names: list[str] = []
        self.values: dict[str, torch.Tensor] = {}

    def put(self, name: str, gradient: torch.Tensor, scale: float = 1.0) -> None:
        self.put_names.append(name)
        self.values[name] = gradient.clone() * scale


class Desk:
    def __init__(self, noise: Noise | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        self.pushes: list[Recorded] = []
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        entries = entries_of({"m": self.model}, [optimizer])
        self.outbox = GradientOutbox(entries, self._open, noise)

    def _open(self) -> Any:
        self.pushes.append(Recorded())
        return self.pushes[-1]

    def backward(self, factor: float = 1.0) -> None:
        (self.model(torch.ones(4, 2)).mean() * factor).backward()

    def gradients(self) -> dict[str, torch.Tensor]:
        found = {f"m/{name}": p.grad for name, p in self.model.named_parameters()}
        return {name: grad.clone() for name, grad in found.items() if grad is not None}


def iteration(**changes: Any) -> Iteration:
    return Iteration(**{"step": 7, "weight": 4.0, "earlier_weight": 0.0, "step_samples": 8, **changes})


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.outbox.detach()


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], factor: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value * factor)


def test_they_leave_in_backward_weighted_by_samples(desk: Desk) -> None:
    desk.outbox.begin(iteration())
    desk.backward()
    assert desk.pushes[0].put_names[0].startswith("m/1.")  # the last layer's come first
    desk.outbox.take()
    assert_equal(desk.pushes[0].values, desk.gradients(), 0.5)


def test_backward_outside_a_loop_is_the_scripts_own_business(desk: Desk) -> None:
    desk.backward()
    assert desk.pushes == []


def test_those_that_never_come_are_zeros(desk: Desk) -> None:
    desk.outbox.begin(iteration())
    desk.model[0](torch.ones(1, 2)).sum().backward()
    desk.outbox.take()
    assert desk.pushes[0].values["m/1.weight"].abs().sum() == 0
    assert desk.pushes[0].values["m/0.weight"].abs().sum() > 0


def test_accumulated_batches_add_up_whether_or_not_the_script_sets_gradients_to_none(desk: Desk) -> None:
    for keeps in (True, False):
        desk.model.zero_grad()
        desk.outbox.begin(iteration(is_last=False))
        desk.backward()
        once = {name: gradient.clone() for name, gradient in desk.gradients().items()}
        desk.outbox.end()
        if not keeps:
            desk.model.zero_grad()
        desk.outbox.begin(iteration(is_first=False, earlier_weight=4.0))
        desk.backward()
        assert_equal(desk.gradients(), once, 2.0 if keeps else 1.0)
        desk.outbox.take()
        desk.outbox.end()
        assert_equal(desk.pushes[-1].values, once, 1.0)


def test_what_the_script_left_in_gradients_counts_as_it_would_alone(desk: Desk) -> None:
    desk.outbox.begin(iteration(step_samples=4))
    desk.backward()
    desk.outbox.end()  # the script took no step and kept its gradients
    once = {name: gradient / 1.0 for name, gradient in desk.gradients().items()}
    desk.outbox.begin(iteration(step_samples=4))
    desk.backward()
    desk.outbox.take()
    assert_equal(desk.pushes[-1].values, once, 2.0)


def test_a_gradient_that_is_changed_after_it_left_is_an_error_that_names_the_fix(desk: Desk) -> None:
    desk.outbox.begin(iteration())
    desk.backward()
    nn.utils.clip_grad_norm_(desk.model.parameters(), 0.001)
    with pytest.raises(UsageError, match=re.escape(texts.gradient_changed("m/0.weight"))):
        desk.outbox.take()


def test_a_gradient_scaler_is_noticed(desk: Desk) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(desk.model.parameters(), lr=0.1)
    desk.outbox.begin(iteration())
    scaler.scale(desk.model(torch.ones(4, 2)).mean()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(UsageError, match=re.escape(texts.gradient_changed("NAME").partition("NAME")[2])):
        desk.outbox.take()


def test_a_second_backward_of_one_step_is_refused(desk: Desk) -> None:
    desk.outbox.begin(iteration())
    desk.backward()
    with pytest.raises(UsageError, match=re.escape(texts.second_gradient("", 7))):
        desk.backward()


def test_noise_is_the_same_again_for_the_same_seed_worker_and_push() -> None:
    found = []
    for worker in (1, 1, 2):
        desk = Desk(Noise(0.5, seed=3, worker=worker))
        desk.outbox.begin(iteration())
        desk.backward()
        desk.outbox.take()
        desk.outbox.detach()
        found.append(desk.pushes[0].values["m/0.weight"] - desk.gradients()["m/0.weight"] * 0.5)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert 0.1 < found[0].std() < 1.0


def test_the_norm_is_that_of_what_left(desk: Desk) -> None:
    desk.outbox.begin(iteration())
    desk.backward()
    desk.outbox.take()
    expected = torch.cat([value.flatten() for value in desk.pushes[0].values.values()]).norm()
    assert desk.outbox.norm() == pytest.approx(float(expected), rel=1e-5)
