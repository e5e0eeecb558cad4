"""A step whose exchange fails leaves no trace, and its redo gives what a run without failures gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.events import StateCopied, StepVoided, UndoKept
from support.training import Hub, train_in_threads

START = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
OTHER = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def data(samples: int = 47) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 5, generator=generator)
    return TensorDataset(x, x[:, :2].sin())


def once(rank: int, text: str) -> Callable[[int, str], bool]:
    """A fault that breaks the first all-reduce of this rank whose label has this text."""
    left = {rank}

    def fault(at: int, label: str) -> bool:
        if at in left and text in label:
            left.discard(at)
            return True
        return False

    return fault


def careful_loop(run: shoal.Run) -> tuple[dict[str, Any], list[bool]]:
    """Everything that a void step must give back: buffers, a schedule, clipping, logged values."""
    model = run.model(copy.deepcopy(START))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    run.keep(schedule=schedule)
    applied = []
    for x, y in run.batches(data(), batch_size=4, epochs=3):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        applied.append(run.applied)
    state = copy.deepcopy(model.state_dict())
    return {**state, "lr": torch.tensor(optimizer.param_groups[0]["lr"]), "steps": torch.tensor(run.step)}, applied


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize(
    "where", ["step 7, exchange 0 of model 1", "gradients 0", "step 7, exchange 0 of model 1, buffers"]
)
def test_a_void_step_is_redone_bit_for_bit(where: str) -> None:
    clean = train_in_threads(3, careful_loop, bucket_mb=0.0001)
    hub = Hub(3, fault=once(1, where))
    broken = train_in_threads(3, careful_loop, hub=hub, bucket_mb=0.0001)
    for (state, applied), (expected, _) in zip(broken, clean, strict=True):
        assert_equal(state, expected)
        assert applied.count(True) == int(expected["steps"])
    assert any(isinstance(event, StepVoided) for event in hub.events)
    assert any(False in applied for _, applied in broken)


def test_three_void_steps_in_a_row_are_redone() -> None:
    seen: list[str] = []

    def fault(rank: int, label: str) -> bool:
        if rank == 2 and label == "step 5, exchange 0 of model 1" and len(seen) < 3:
            seen.append(label)
            return True
        return False

    clean = train_in_threads(3, careful_loop)
    broken = train_in_threads(3, careful_loop, hub=Hub(3, fault=fault))
    assert len(seen) == 3
    for (state, _), (expected, _) in zip(broken, clean, strict=True):
        assert_equal(state, expected)


def test_a_member_that_missed_a_step_copies_the_state_of_one_that_applied_it() -> None:
    """Rank 1 fails after its own part is sent, so that others may have finished the step that it must redo."""
    clean = train_in_threads(2, careful_loop)

    def lose(run: shoal.Run) -> tuple[dict[str, Any], list[bool]]:
        return careful_loop(run)

    hub = Hub(2, fault=once(0, "end of loop"))
    broken = train_in_threads(2, lose, hub=hub)
    for (state, _), (expected, _) in zip(broken, clean, strict=True):
        assert_equal(state, expected)


def two_optimizers(run: shoal.Run) -> dict[str, Any]:
    first, second = run.model(copy.deepcopy(START)), run.model(copy.deepcopy(OTHER))
    one = run.optimizer(torch.optim.SGD(first.parameters(), lr=0.05, momentum=0.9))
    two = run.optimizer(torch.optim.Adam(second.parameters(), lr=0.01))
    for x, y in run.batches(data(), batch_size=4, epochs=2):
        F.mse_loss(first(x), y).backward()
        one.step()
        one.zero_grad()
        second(first(x).detach()).square().mean().backward()
        two.step()
        two.zero_grad()
    return {f"{n}.{name}": t.clone() for n, m in enumerate((first, second)) for name, t in m.state_dict().items()}


@pytest.mark.parametrize("step", [0, 6])
def test_several_optimizers_in_one_iteration_are_all_applied_or_none(step: int) -> None:
    clean = train_in_threads(2, two_optimizers)
    hub = Hub(2, fault=once(0, f"step {step}, exchange 1 of model 2"))
    broken = train_in_threads(2, two_optimizers, hub=hub)
    for state, expected in zip(broken, clean, strict=True):
        assert_equal(state, expected)
    assert any(isinstance(event, StepVoided) and event.step == step for event in hub.events)
    assert any(isinstance(event, UndoKept) for event in hub.events)


def test_a_mean_that_fails_after_the_exchange_leaves_the_step_applied() -> None:
    def train(run: shoal.Run) -> tuple[int, dict[str, Any]]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=4):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.mean(loss)
        return run.step, copy.deepcopy(model.state_dict())

    clean = train_in_threads(2, train)
    hub = Hub(2, fault=once(1, "mean, call 3"))
    broken = train_in_threads(2, train, hub=hub)
    assert not any(isinstance(event, StepVoided) for event in hub.events)
    for (steps, state), (expected_steps, expected) in zip(broken, clean, strict=True):
        assert steps == expected_steps
        assert_equal(state, expected)


def test_whoever_is_behind_copies_from_the_furthest() -> None:
    """One member's exchange is made to fail after the reduction was whole elsewhere."""

    def train(run: shoal.Run) -> dict[str, Any]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        for number, (x, y) in enumerate(run.batches(data(), batch_size=4, epochs=2)):
            F.mse_loss(model(x), y).backward()
            if number == 4 and run.rank == 1:
                forget_step(run)
            optimizer.step()
            optimizer.zero_grad()
        return {**copy.deepcopy(model.state_dict()), "steps": torch.tensor(run.step)}

    clean_hub, hub = Hub(2), Hub(2)
    hub_is_broken = {"on": True}

    def forget_step(run: shoal.Run) -> None:
        if run._session.peers._hub is hub and hub_is_broken.pop("on", False):  # type: ignore[attr-defined]
            iteration = run._session.iteration
            assert iteration is not None
            run._session.peers.group.abort("broken on purpose")
            iteration.exchanges = 0
            run.mean(0.0)
            assert iteration.is_void

    clean = train_in_threads(2, train, hub=clean_hub)
    broken = train_in_threads(2, train, hub=hub)
    copied = [event for event in hub.events if isinstance(event, StateCopied)]
    assert [(event.worker, event.source) for event in copied] == [(1, 0)]
    for state, expected in zip(broken, clean, strict=True):
        assert_equal(state, expected)
