"""A step whose exchange fails leaves no trace, and its redo gives what a run without failures gives."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.events import Advised, Evaluated, StateCopied, StepVoided, UndoKept
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
    hub = Hub(2, fault=once(1, "step 4, mean, call 1"))
    broken = train_in_threads(2, train, hub=hub)
    assert not any(isinstance(event, StepVoided) for event in hub.events)
    assert hub.number == 2, "the fault was never met"
    for (steps, state), (expected_steps, expected) in zip(broken, clean, strict=True):
        assert steps == expected_steps
        assert_equal(state, expected)


def test_whoever_is_behind_copies_from_the_furthest() -> None:
    """Rank 1 sees its exchange fail although it was whole: it is one step behind when the members regroup."""
    clean = train_in_threads(2, careful_loop)
    hub = Hub(2, late=once(1, "step 4, exchange 0 of model 1, buffers 1"))
    broken = train_in_threads(2, careful_loop, hub=hub)
    copied = [event for event in hub.events if isinstance(event, StateCopied)]
    assert [(event.worker, event.source) for event in copied] == [(1, 0)]
    for (state, _), (expected, _) in zip(broken, clean, strict=True):
        assert_equal(state, expected)


def test_a_script_that_saw_another_value_than_its_peers_copies_their_state() -> None:
    """A schedule that follows the mean loss would otherwise part from the others for good."""

    def train(run: shoal.Run) -> dict[str, Any]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.3)
        run.keep(schedule=schedule)
        for x, y in run.batches(data(), batch_size=4, epochs=2):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step(run.mean(loss.item()))
        return {**copy.deepcopy(model.state_dict()), "lr": torch.tensor(optimizer.param_groups[0]["lr"])}

    hub = Hub(3, late=once(1, "step 5, mean"))
    first, *others = train_in_threads(3, train, hub=hub)
    assert hub.number == 2
    for other in others:
        assert_equal(first, other)


def test_an_evaluation_that_fails_inside_a_loop_gives_no_score() -> None:
    def train(run: shoal.Run) -> list[float]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        scores = []
        for x, y in run.batches(data(), batch_size=4):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            scores.append(run.evaluate(lambda x, y: F.mse_loss(model(x), y), data(), batch_size=8)["score"])
        return scores

    hub = Hub(2, fault=once(1, "step 3, evaluation"))
    for scores in train_in_threads(2, train, hub=hub):
        assert [number for number, score in enumerate(scores) if math.isnan(score)] == [3]
    assert 3 not in [event.step for event in hub.events if isinstance(event, Evaluated)]


@pytest.mark.parametrize("how", ["raise", "break"])
@pytest.mark.parametrize("late", [False, True])
def test_a_script_that_raises_or_leaves_in_a_void_iteration_starts_again_as_a_newcomer(how: str, late: bool) -> None:
    """Its past loops are empty, its past results are handed out again, and it goes on where the others are."""

    def train(run: shoal.Run, *, reacts: bool) -> tuple[dict[str, Any], list[float]]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
        run.keep(schedule=schedule)
        scores = [run.mean(float(run.rank))]
        for epoch in run.epochs(4):
            for x, y in epoch.batches(data(), batch_size=4):
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                if reacts and not run.applied:
                    if how == "raise":
                        raise ArithmeticError("the gradient is zero")
                    break
            scores.append(run.evaluate(lambda x, y: F.mse_loss(model(x), y), data(), batch_size=8)["score"])
        state = copy.deepcopy(model.state_dict())
        return {**state, "lr": torch.tensor(optimizer.param_groups[0]["lr"]), "steps": torch.tensor(run.step)}, scores

    clean = train_in_threads(3, lambda run: train(run, reacts=False))
    fault = once(1, "step 10, exchange 0 of model 1" + (", buffers 1" if late else ""))
    hub = Hub(3, late=fault) if late else Hub(3, fault=fault)
    broken = train_in_threads(3, lambda run: train(run, reacts=True), hub=hub)
    assert any(isinstance(event, Advised) and "starts again from the top" in event.text for event in hub.events)
    for (state, scores), (expected, expected_scores) in zip(broken, clean, strict=True):
        assert_equal(state, expected)
        assert scores == expected_scores


def rich_script(run: shoal.Run) -> dict[str, Any]:
    """Two models and optimizers, accumulation, batch statistics over all workers, a scheduler and a mean."""
    first = run.model(copy.deepcopy(START), sync_batchnorm=True)
    second = run.model(copy.deepcopy(OTHER))
    one = run.optimizer(torch.optim.AdamW(first.parameters(), lr=0.01), clip_norm=1.0)
    two = run.optimizer(torch.optim.SGD(second.parameters(), lr=0.01, momentum=0.9))
    schedule = torch.optim.lr_scheduler.StepLR(one, 2, gamma=0.7)
    run.keep(schedule=schedule)
    for x, y in run.batches(data(29), batch_size=3, accumulate=2, steps=3):
        loss = F.mse_loss(first(x), y)
        loss.backward()
        one.step()
        one.zero_grad()
        second(first(x).detach()).square().mean().backward()
        two.step()
        two.zero_grad()
        run.mean(loss.detach())
        if run.applied:
            schedule.step()
    states = {f"{n}.{name}": t.clone() for n, m in enumerate((first, second)) for name, t in m.state_dict().items()}
    return {**states, "lr": torch.tensor(one.param_groups[0]["lr"]), "steps": torch.tensor(run.step)}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "rank"), [("fault", 0), ("fault", 1), ("late", 0), ("late", 1)])
def test_a_failure_of_any_operation_is_mended(kind: str, rank: int) -> None:
    """Every all-reduce of the loop fails once, on either rank: before it starts, or after others have its result."""
    hub = Hub(2)
    clean = train_in_threads(2, rich_script, hub=hub)
    in_loop = [label for label in hub.labels[rank] if label.startswith("step ")]
    for number in range(len(in_loop)):
        broken_hub = Hub(2, **{kind: nth(rank, number)})
        results = train_in_threads(2, rich_script, hub=broken_hub)
        assert broken_hub.number == 2, f"operation {number} was not met"
        for state, expected in zip(results, clean, strict=True):
            for name, tensor in state.items():
                assert torch.equal(tensor, results[0][name]), f"{in_loop[number]}: replicas differ in {name}"
                assert torch.equal(tensor, expected[name]), f"{in_loop[number]}: {name} is not as without the failure"


def nth(rank: int, number: int) -> Callable[[int, str], bool]:
    """A fault at the rank's all-reduce of that number, counting those inside the loop."""
    seen = [0]

    def fault(at: int, label: str) -> bool:
        if at != rank or not label.startswith("step "):
            return False
        seen[0] += 1
        return seen[0] == number + 1

    return fault
