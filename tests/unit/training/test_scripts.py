"""Ways in which people write loops, and mistakes they make: right on many workers, or told."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.errors import UsageError, WorkersDisagree
from shoal.strategies import texts as strategy_texts
from shoal.training import texts
from support.training import train_in_threads

START = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def data(samples: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :2].sin())


def difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    return max((left[name].double() - right[name].double()).abs().max().item() for name in left)


@pytest.mark.parametrize("size", [1, 2])
def test_accumulation_with_zero_grad_at_the_top_of_the_loop(size: int) -> None:
    def train(run: shoal.Run, batch: int, accumulate: int, *, zero_first: bool) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in run.batches(data(), batch_size=batch, accumulate=accumulate, epochs=2):
            if zero_first:
                optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    (expected,) = train_in_threads(1, lambda run: train(run, 8, 1, zero_first=False))
    for found in train_in_threads(size, lambda run: train(run, 4 // size, 2, zero_first=True)):
        assert difference(found, expected) < 1e-12


def test_a_gradient_scaler_with_accumulation_acts_in_applied_iterations() -> None:
    def train(run: shoal.Run) -> list[float]:
        model = run.model(copy.deepcopy(START).float())
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        losses = []
        for x, y in run.batches(data(), batch_size=4, accumulate=2, epochs=8):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x.float()), y.float())
            scaler.scale(loss).backward()
            if run.applied:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                losses.append(run.mean(loss.item()))
        return losses

    losses = train_in_threads(2, train)[0]
    assert losses[-1] < losses[0] * 0.8


def test_parameters_frozen_and_thawed_within_an_iteration() -> None:
    """As in adversarial training: the discriminator is frozen while the generator learns, in one iteration."""

    def train(run: shoal.Run) -> dict[str, torch.Tensor]:
        one, two = run.model(copy.deepcopy(START)), run.model(nn.Linear(2, 1).double())
        first = run.optimizer(torch.optim.SGD(one.parameters(), lr=0.1))
        second = run.optimizer(torch.optim.SGD(two.parameters(), lr=0.1))
        for x, y in run.batches(data(), batch_size=4, epochs=2):
            two.requires_grad_(True)
            (two(one(x).detach()).mean() - two(y).mean()).backward()
            second.step()
            second.zero_grad()
            two.requires_grad_(False)
            two(one(x)).mean().neg().backward()
            first.step()
            first.zero_grad()
        return {**copy.deepcopy(one.state_dict()), **{f"two.{n}": t.clone() for n, t in two.state_dict().items()}}

    first, *others = train_in_threads(3, train)
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


@pytest.mark.parametrize("order", ["a first", "b first", "the same model twice"])
def test_parameters_of_two_models_are_exchanged_once(order: str) -> None:
    trunk, heads = nn.Linear(5, 4).double(), [nn.Linear(4, 2).double() for _ in range(2)]

    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        shared = copy.deepcopy(nn.ModuleList([trunk, *heads]))
        a, b = (nn.Sequential(shared[0], nn.Tanh(), head) for head in shared[1:])
        models = [run.model(a), run.model(a if order == "the same model twice" else b)]
        optimizer = run.optimizer(
            torch.optim.SGD(list({id(p): p for m in models for p in m.parameters()}.values()), lr=0.1)
        )
        for x, y in run.batches(data(), batch_size=batch, epochs=2):
            losses = [F.mse_loss(model(x), y) for model in (models if order == "a first" else reversed(models))]
            (losses[0] + 2 * losses[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(shared.state_dict())

    (expected,) = train_in_threads(1, lambda run: train(run, 8))
    for found in train_in_threads(2, lambda run: train(run, 4)):
        assert difference(found, expected) < 1e-12


@pytest.mark.parametrize("size", [1, 2])
def test_a_loop_left_in_the_middle_of_a_step_leaves_nothing_to_the_next(size: int) -> None:
    def train(run: shoal.Run, *, leave: bool) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        if leave:
            for x, y in run.batches(data(), batch_size=4, accumulate=2):
                (100 * F.mse_loss(model(x), y)).backward()
                break
        for x, y in run.batches(data(), batch_size=4, accumulate=2):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    clean = train_in_threads(size, lambda run: train(run, leave=False))
    assert difference(train_in_threads(size, lambda run: train(run, leave=True))[0], clean[0]) == 0


def test_a_backward_that_raises_and_is_caught_does_not_stop_training() -> None:
    def train(run: shoal.Run) -> list[bool]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        moved = []
        for number, (x, y) in enumerate(run.batches(data(), batch_size=4)):
            before = model[0].weight.detach().clone()
            hidden = model[0](x)
            if number == 1:
                hidden.register_hook(lambda _: 1 / 0)
            try:
                F.mse_loss(model[2](hidden.tanh()), y).backward()
                optimizer.step()
            except ZeroDivisionError:
                pass
            optimizer.zero_grad()
            moved.append(not torch.equal(before, model[0].weight))
        return moved

    # The exchange of that iteration had begun, so peers cannot know: on many workers it is a disagreement, and told.
    assert train_in_threads(1, train)[0] == [True, False, *[True] * 10]


def test_gradients_outside_a_loop_are_the_script_s_own() -> None:
    def train(run: shoal.Run) -> tuple[nn.Module, float]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in run.batches(data(), batch_size=4):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.is_first:
            model(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
        return model, run.mean(1.0)

    (model, _), (other, _) = train_in_threads(2, train)
    assert model[2].bias.grad.tolist() == [1.0, 1.0] and other[2].bias.grad is None
    model.zero_grad()
    model(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    assert model[2].bias.grad.tolist() == [1.0, 1.0], "after the run the model is an ordinary one"


def test_buffers_that_no_gradient_belongs_to_are_averaged_too() -> None:
    """A frozen encoder with live BatchNorm, and a forward in training mode after the exchange."""

    def train(run: shoal.Run) -> dict[str, torch.Tensor]:
        encoder = run.model(nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)).double().requires_grad_(False))
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in run.batches(data(), batch_size=4):
            F.mse_loss(model(encoder(x)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            encoder(x)
        return copy.deepcopy(encoder.state_dict())

    first, second = train_in_threads(2, train)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["1.running_mean"], torch.zeros(5, dtype=torch.float64))


def test_carried_gradients_survive_where_only_others_use_the_parameter() -> None:
    def train(run: shoal.Run) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(nn.ModuleList([START, copy.deepcopy(START)])))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for number, (x, y) in enumerate(run.batches(data(), batch_size=4)):
            uses_both = number % 2 == 0 or run.rank == 0
            loss = F.mse_loss(model[0](x), y)
            (loss + F.mse_loss(model[1](x), y) if uses_both else loss).backward()
            if number % 2:  # gradients of two iterations add up
                optimizer.step()
                optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    first, second = train_in_threads(2, train)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_replicas_that_come_apart_are_noticed_at_the_end_of_the_loop() -> None:
    def train(run: shoal.Run) -> None:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1 + 0.01 * run.rank))
        for x, y in run.batches(data(), batch_size=4):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(WorkersDisagree, match="the replicas have come apart"):
        train_in_threads(2, train)


def nested(run: shoal.Run) -> None:
    for _ in run.batches(data(), batch_size=4):
        for _ in run.batches(data(), batch_size=4):
            pass


def again(run: shoal.Run) -> None:
    batches = run.batches(data(), batch_size=4)
    for _ in range(2):
        for _ in batches:
            pass


def foreign(run: shoal.Run) -> None:
    run.optimizer(torch.optim.SGD(START.parameters(), lr=0.1))
    for _ in run.batches(data(), batch_size=4):
        pass


def late_model(run: shoal.Run) -> None:
    for _ in run.batches(data(), batch_size=4):
        run.model(copy.deepcopy(START))


def replaced_layer(run: shoal.Run) -> None:
    model = run.model(copy.deepcopy(START))
    model[2] = nn.Linear(8, 2).double()
    for _ in run.batches(data(), batch_size=4):
        pass


def twice(run: shoal.Run) -> None:
    model = run.model(copy.deepcopy(START))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    run.optimizer(optimizer)


def closure_with_accumulation(run: shoal.Run) -> None:
    model = run.model(copy.deepcopy(START))
    optimizer = run.optimizer(torch.optim.LBFGS(model.parameters()))
    for x, y in run.batches(data(), batch_size=4, accumulate=2):
        optimizer.step(lambda x=x, y=y: F.mse_loss(model(x), y))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (nested, texts.LOOP_IN_LOOP),
        (again, texts.LOOP_TWICE),
        (foreign, texts.parameter_in_no_model(1, [8, 5])),
        (late_model, texts.MODEL_IN_LOOP),
        (replaced_layer, strategy_texts.new_parameter("model 1", [2, 8])),
        (twice, texts.OPTIMIZER_TWICE),
        (closure_with_accumulation, texts.CLOSURE_WITH_ACCUMULATE),
    ],
)
def test_mistakes_are_told_on_one_worker_as_on_many(mistake: Any, text: str, size: int) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        train_in_threads(size, mistake)


def test_a_copy_of_a_model_with_batch_statistics_over_all_workers() -> None:
    def train(run: shoal.Run) -> int:
        shared = nn.BatchNorm1d(5)
        model = run.model(nn.ModuleList([shared, nn.Linear(5, 5), shared]), sync_batchnorm=True)
        assert model[0] is model[2]
        average = copy.deepcopy(model)
        assert average[0].statistics is model[0].statistics and average[0].weight is not model[0].weight
        with pytest.raises(UsageError, match=texts.NO_SECOND_DERIVATIVES):
            x = torch.randn(4, 5, requires_grad=True)
            torch.autograd.grad(model[0](x).sum(), x, create_graph=True)
        return sum(1 for module in average.modules() if type(module).__name__ == "SyncBatchNorm")

    assert train_in_threads(1, train) == [1]


def test_a_run_that_is_over_keeps_no_model_alive() -> None:
    kept: list[weakref.ref[nn.Module]] = []

    def train(run: shoal.Run) -> None:
        model = run.model(copy.deepcopy(START), sync_batchnorm=True)
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in run.batches(data(), batch_size=4):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        kept.append(weakref.ref(model))

    train_in_threads(2, train)
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
