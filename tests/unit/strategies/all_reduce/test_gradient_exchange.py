"""An exchange in place: gradients stay where autograd made them and leave in the order in which it makes them."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import shoal
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.errors import UsageError
from shoal.events import StepVoided
from shoal.strategies import texts
from shoal.strategies.all_reduce import gradient_exchange
from support.training import Crew, Hub, WatchedGroup, train_in_threads

WIDTH = 64


class Backwards(nn.Module):
    """Its layers are registered in the opposite order of their use."""

    def __init__(self) -> None:
        super().__init__()
        self.third, self.second, self.first = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, WIDTH), nn.Linear(5, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.third(self.second(self.first(x).tanh()).tanh()))


START = Backwards().double()
PLAIN = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
ORDER = {"third": 0, "second": 1, "first": 2}  # in which the layers' gradients come


def data(samples: int = 24) -> TensorDataset:
    x = torch.randn(samples, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return TensorDataset(x, x[:, :2].sin())


def loop(run: shoal.Run, model: nn.Module, before: Callable[[], None] = lambda: None) -> None:
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    for x, y in run.batches(data(), batch_size=4):
        before()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_gradient_is_reduced_where_autograd_made_it() -> None:
    def train(run: shoal.Run) -> list[bool]:
        model = run.model(copy.deepcopy(PLAIN))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        made: dict[torch.Tensor, int] = {}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: made.update({p: p.grad.data_ptr()}))
        in_place = []
        for x, y in run.batches(data(), batch_size=4):
            F.mse_loss(model(x), y).backward()
            in_place += [parameter.grad.data_ptr() == address for parameter, address in made.items()]
            optimizer.step()
            optimizer.zero_grad()
        return in_place

    for in_place in train_in_threads(2, train):
        assert in_place and all(in_place)


def test_gradients_leave_in_the_order_of_backward_whatever_the_order_of_registration() -> None:
    hub = Hub(2)

    def train(run: shoal.Run) -> list[int]:
        model, left = run.model(copy.deepcopy(START)), []

        def last_gradient(_gradient: torch.Tensor) -> None:
            labels = [label for label in hub.labels[run.rank] if label.startswith(f"step {run.step},")]
            left.append(sum("gradients" in label for label in labels))

        model.first.weight.register_hook(last_gradient)
        loop(run, model)
        assert list(dict.fromkeys(ORDER[name.split(".")[0]] for name in order_of(run))) == [0, 1, 2]
        return left

    for first, *later in train_in_threads(2, train, hub=hub, bucket_mb=0.0001):
        assert first <= 1, "next to nothing can leave: the first layer's gradients come last and were registered last"
        assert later and all(left >= 3 for left in later)


@pytest.mark.parametrize("has_spare_core", [False, True])
def test_where_every_core_computes_groups_wait_for_the_end_of_backward(
    has_spare_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchedGroup, "needs_a_core", True)
    monkeypatch.setattr(gradient_exchange, "_has_spare_core", lambda _ranks: has_spare_core)
    hub = Hub(2)

    def train(run: shoal.Run) -> list[bool]:
        model, left = run.model(copy.deepcopy(START)), []

        def last_gradient(_gradient: torch.Tensor) -> None:
            left.append(any(label.startswith(f"step {run.step},") for label in hub.labels[run.rank]))

        model.first.weight.register_hook(last_gradient)
        loop(run, model)
        return left

    for left in train_in_threads(2, train, hub=hub, bucket_mb=0.0001):
        assert left and set(left) == {has_spare_core}


@pytest.mark.parametrize(("least", "groups"), [(0, 1), (1024, 3), (10**9, 1)])
def test_over_links_that_are_worth_it_gradients_leave_in_more_groups(
    least: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchedGroup, "least_bytes", least)
    hub = Hub(2)

    def train(run: shoal.Run) -> None:
        loop(run, run.model(copy.deepcopy(START)))

    train_in_threads(2, train, hub=hub)
    assert groups_in(hub, 2) == groups


def test_groups_follow_the_links_of_the_next_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedGroup, "least_bytes", property(lambda group: 1024 if group.generation > 1 else 0))
    hub = Hub(2, fault=lambda rank, label: rank == 1 and "step 1, exchange 0" in label and hub.number == 1)

    def train(run: shoal.Run) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        loop(run, model)
        assert list(dict.fromkeys(ORDER[name.split(".")[0]] for name in order_of(run))) == [0, 1, 2]
        return model.state_dict()

    ours, others = train_in_threads(2, train, hub=hub)
    assert all(torch.equal(ours[name], others[name]) for name in ours)
    assert [groups_in(hub, step) for step in (0, 2)] == [1, 3]


def groups_in(hub: Hub, step: int) -> int:
    """In which gradients of worker 0 left in a step that was not redone."""
    return sum(label.startswith(f"step {step},") and "gradients" in label for label in hub.labels[0])


def order_of(run: shoal.Run) -> list[str]:
    return run._session.strategy.state()["orders"]["model 1"]


def test_all_workers_follow_rank_0_where_their_orders_differ() -> None:
    """Worker 1 uses the layers the other way round; groups that one of them waits for make no deadlock."""
    pair = nn.ModuleDict({"a": nn.Linear(5, 5), "b": nn.Linear(5, 5)}).double()

    def train(run: shoal.Run, order: tuple[str, ...]) -> tuple[list[str], dict[str, torch.Tensor]]:
        model = run.model(copy.deepcopy(pair))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, _ in run.batches(data(), batch_size=4):
            hidden = x
            for name in order[1:] if run.rank == 1 else order[:-1]:
                hidden = model[name](hidden).tanh()
            hidden.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return order_of(run), copy.deepcopy(model.state_dict())

    (order, state), (other_order, other) = train_in_threads(2, lambda run: train(run, ("a", "b", "a")), bucket_mb=1e-4)
    assert order == other_order
    assert [name.split(".")[0] for name in order] == ["b", "b", "a", "a"]
    assert all(torch.equal(state[name], other[name]) for name in state)


def test_gradients_that_share_memory_are_summed_once() -> None:
    """The gradients of both halves are slices of one tensor."""
    halves = nn.ParameterDict({"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.ones(2))}).double()

    def train(run: shoal.Run, batch: int) -> torch.Tensor:
        model = run.model(copy.deepcopy(halves))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, _ in run.batches(data(), batch_size=batch):
            ((x * torch.cat([model["a"], model["b"]])).sum(1) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([model["a"], model["b"]]).detach()

    (alone,) = train_in_threads(1, lambda run: train(run, 12))
    for together in train_in_threads(3, lambda run: train(run, 4)):
        assert (alone - together).abs().max().item() < 1e-12


def test_what_a_script_holds_of_earlier_gradients_stays_as_it_was() -> None:
    def train(run: shoal.Run) -> None:
        model = run.model(copy.deepcopy(PLAIN))
        held: list[tuple[torch.Tensor, torch.Tensor]] = []

        def hold() -> None:
            assert all(torch.equal(gradient, values) for gradient, values in held)

        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=4):
            F.mse_loss(model(x), y).backward()
            hold()
            held += [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
        hold()

    train_in_threads(2, train)


def test_a_backward_that_raises_leaves_no_gradient_of_this_worker_alone() -> None:
    def train(run: shoal.Run) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(PLAIN))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))

        def fail(_gradient: torch.Tensor) -> None:
            if run.step == 2:
                raise ArithmeticError

        model[0].weight.register_hook(fail)
        for x, y in run.batches(data(), batch_size=4):
            with suppress(ArithmeticError):
                F.mse_loss(model(x), y).backward()
            optimizer.step()  # keeps the gradients, so that what they hold is added to
        return copy.deepcopy(model.state_dict())

    first, second = train_in_threads(2, train)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_complex_parameters() -> None:
    start = nn.ParameterList([nn.Parameter(torch.full((5,), 0.5 + 0.2j, dtype=torch.complex128))])

    def train(run: shoal.Run, batch: int) -> torch.Tensor:
        model = run.model(copy.deepcopy(start))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, _ in run.batches(data(), batch_size=batch):
            (x.to(torch.complex128) * model[0]).sum(1).abs().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model[0].detach().clone()

    (alone,) = train_in_threads(1, lambda run: train(run, 12))
    for together in train_in_threads(3, lambda run: train(run, 4)):
        assert (alone - together).abs().max().item() < 1e-12


@pytest.mark.parametrize("bucket_mb", [4.0, 1e-5])
def test_parameters_of_several_dtypes(bucket_mb: float) -> None:
    start = nn.Sequential(nn.Linear(5, 6).double(), nn.Linear(6, 6), nn.Linear(6, 2).double())

    def train(run: shoal.Run, batch: int) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(start))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=batch):
            F.mse_loss(model[2](model[1](model[0](x).float()).double()), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    (alone,) = train_in_threads(1, lambda run: train(run, 12))
    for together in train_in_threads(3, lambda run: train(run, 4), bucket_mb=bucket_mb):
        for name, tensor in alone.items():
            assert (tensor - together[name]).abs().max().item() < 1e-6, name


TWICE = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2)).double()


def checkpointed_twice(run: shoal.Run, batch: int) -> torch.Tensor:
    """With the older kind of checkpointing, a layer that is used in two checkpointed places gets two gradients."""
    model = run.model(copy.deepcopy(TWICE))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    for x, y in run.batches(data(), batch_size=batch):
        hidden = x.requires_grad_(True)
        for _ in range(2):
            hidden = checkpoint(model[0], hidden, use_reentrant=True)
        F.mse_loss(model[1](hidden), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model[0].weight.detach().clone()


def test_a_gradient_that_comes_twice_before_its_group_leaves_is_added_up() -> None:
    (alone,) = train_in_threads(1, lambda run: checkpointed_twice(run, 12))
    for together in train_in_threads(3, lambda run: checkpointed_twice(run, 4)):
        assert (alone - together).abs().max().item() < 1e-12


def test_a_gradient_that_comes_again_after_its_group_has_left_is_named() -> None:
    text = re.escape(texts.gradient_came_twice("0.NAME", "model 1")).replace("NAME", "(weight|bias)")
    with pytest.raises(UsageError, match=text):
        train_in_threads(2, lambda run: checkpointed_twice(run, 4), bucket_mb=1e-5)


def test_an_order_that_was_seen_in_a_void_step_is_forgotten() -> None:
    faults = iter([True])

    def fault(worker: int, label: str) -> bool:
        return worker == 1 and label == "step 0, exchange 0 of model 1, gradients 1" and next(faults, False)

    hub = Hub(2, fault=fault)

    def train(run: shoal.Run) -> list[list[str]]:
        model, orders = run.model(copy.deepcopy(START)), []
        loop(run, model, before=lambda: orders.append(order_of(run)))
        return orders

    for first, redone, third, *_ in train_in_threads(2, train, hub=hub, bucket_mb=0.0001):
        assert first == redone == []
        assert len(third) == 6
    assert any(isinstance(event, StepVoided) for event in hub.events)


def first_orders(orders: dict[int, list[str]], before: Callable[[shoal.Run], None]) -> Callable[[shoal.Run], None]:
    """A script that notes, by worker, the order that its first exchange followed."""

    def train(run: shoal.Run) -> None:
        loop(run, run.model(copy.deepcopy(START)), before=lambda: note(run))

    def note(run: shoal.Run) -> None:
        orders.setdefault(run._session.peers.worker, order_of(run))
        before(run)

    return train


def test_a_newcomer_takes_the_order_over_from_the_others() -> None:
    def before(run: shoal.Run) -> None:
        if run.step == 1 and run.rank == 0 and run.world_size == 2:
            crew.start(2)
            deadline = time.monotonic() + 30
            while not hub.is_wished and time.monotonic() < deadline:
                time.sleep(0.001)

    orders: dict[int, list[str]] = {}
    hub = Hub(2)
    crew = Crew(hub, first_orders(orders, before), bucket_mb=0.0001)
    crew.start(0)
    crew.start(1)
    crew.wait()
    assert orders[0] == orders[1] == []
    assert len(orders[2]) == 6


def test_a_newcomer_knows_which_frozen_parameters_were_trained_before() -> None:
    """The others go on with all of them in their groups: scripts freeze and thaw."""

    def train(run: shoal.Run) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        loop(run, model)
        model.first.requires_grad_(False)
        loop(run, model, before=lambda: let_one_in(run))
        return model.state_dict()

    def let_one_in(run: shoal.Run) -> None:
        if run.step == 4 and run.rank == 0 and run.world_size == 2:
            crew.start(2)
            deadline = time.monotonic() + 30
            while not hub.is_wished and time.monotonic() < deadline:
                time.sleep(0.001)

    hub = Hub(2)
    crew = Crew(hub, train, bucket_mb=0.0001)
    crew.start(0)
    crew.start(1)
    trained = crew.wait()
    assert trained.keys() == {0, 1, 2}
    assert all(torch.equal(trained[0][name], trained[2][name]) for name in trained[0])


class Killed(BaseException):
    """Ends a worker in the middle of its script."""


def test_a_resumed_job_goes_on_in_the_order_that_it_had(tmp_path: Path) -> None:
    """It sums as if it had never been interrupted, from its first exchange on."""
    store = LocalStore(tmp_path)

    def die(run: shoal.Run) -> None:
        run._session.saver.wait()
        if run.step == 2:
            raise Killed

    hub = Hub(2, publisher=StorePublisher(store, keep=3), store=store)
    with pytest.raises(Killed):
        train_in_threads(2, first_orders({}, die), hub=hub, checkpoint_every="1", bucket_mb=0.0001)
    orders: dict[int, list[str]] = {}
    hub = Hub(2, publisher=StorePublisher(store, keep=3), store=store, is_resumed=True)
    hub.number = 10  # generations go on counting
    train_in_threads(2, first_orders(orders, lambda _: None), hub=hub, checkpoint_every="1", bucket_mb=0.0001)
    assert len(orders[0]) == 6 and orders[0] == orders[1]
