"""Resume where scripts are less plain: memory layouts, random numbers between loops, what is handed over late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset, TensorDataset

import shoal
from shoal.checkpoint.published.catalogue import load_manifest, marks, published
from shoal.checkpoint.published.reader import read_state
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.errors import CheckpointUnusable, UsageError
from shoal.training import texts
from support.training import Hub, train_in_threads

Script = Callable[[shoal.Run], Any]


class Killed(BaseException):
    """Ends a worker in the middle of its script."""


def hub_of(size: int, folder: Path, *, resumed: bool = False) -> Hub:
    store = LocalStore(folder)
    hub = Hub(size, publisher=StorePublisher(store, keep=100), store=store, is_resumed=resumed)
    hub.number = 10 if resumed else 0  # generations go on counting
    return hub


def data(samples: int = 16, width: int = 3) -> TensorDataset:
    x = torch.randn(samples, width, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x.sum(1, keepdim=True))


def linear(width: int = 3) -> nn.Linear:
    model = nn.Linear(width, 1)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.fill_(0.2)
    return model


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    F.mse_loss(model(batch[0]).flatten(1).mean(1, keepdim=True), batch[1]).backward()
    optimizer.step()
    optimizer.zero_grad()


def whole_and_resumed(script: Script, folder: Path, *, size: int, die_at: int) -> tuple[Any, Any]:
    """Rank 0's result of a job that was never interrupted, and of one that died and was resumed."""
    whole = train_in_threads(size, script)[0]

    def dying(run: shoal.Run) -> Any:
        original = run._session.begin

        def begin(iteration: Any) -> None:
            run._session.saver.wait()
            if iteration.step == die_at:
                raise Killed
            original(iteration)

        run._session.begin = begin  # type: ignore[method-assign]  to be interrupted there
        return script(run)

    with pytest.raises(Killed):
        train_in_threads(size, dying, hub=hub_of(size, folder), checkpoint_every="1")
    return whole, train_in_threads(size, script, hub=hub_of(size, folder, resumed=True))[0]


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_fused_optimizers_and_channels_last(kind: str, tmp_path: Path) -> None:
    """Fused kernels pair a parameter's elements with its state's by their place in memory."""

    def script(run: shoal.Run) -> torch.Tensor:
        torch.manual_seed(3)
        net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        model = run.model(net)
        made = {
            "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
            "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True),
        }[kind]
        optimizer = run.optimizer(made())
        images = TensorDataset(torch.randn(12, 3, 5, 5, generator=torch.Generator().manual_seed(4)), torch.zeros(12, 1))
        for batch in run.batches(images, batch_size=2):
            update(model, optimizer, batch)
        return model.weight.detach().clone()

    whole, resumed = whole_and_resumed(script, tmp_path, size=1, die_at=3)
    assert torch.equal(whole, resumed)


def test_random_numbers_between_loops(tmp_path: Path) -> None:
    """Each epoch trains on a part of the data that is drawn before it; scores draw too, and are not computed again."""

    def script(run: shoal.Run) -> tuple[torch.Tensor, list[list[int]]]:
        model = run.model(linear())
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        chosen = []
        for epoch in run.epochs(3):
            chosen.append(torch.randperm(16)[:8].tolist())
            for batch in epoch.batches(Subset(data(), chosen[-1]), batch_size=2):
                update(model, optimizer, batch)
            run.evaluate(lambda x, y: F.mse_loss(model(x), y) + torch.rand(()), data(), batch_size=4)
        return model.weight.detach().clone(), chosen

    whole, resumed = whole_and_resumed(script, tmp_path, size=1, die_at=9)
    assert whole[1] == resumed[1]
    assert torch.equal(whole[0], resumed[0])


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_carried_over_between_steps(size: int, tmp_path: Path) -> None:
    """Sparse ones too: made dense they would add up in another order, or not at all."""

    def script(run: shoal.Run) -> torch.Tensor:
        torch.manual_seed(3)
        model = run.model(nn.Embedding(10, 4, sparse=True))
        with torch.no_grad():
            model.weight.copy_(torch.arange(40).reshape(10, 4) / 40)
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        indices = TensorDataset(torch.arange(16) % 10)
        for number, (index,) in enumerate(run.batches(indices, batch_size=2)):
            model(index).square().sum().backward()
            optimizer.step()
            if number % 3 == 2:
                optimizer.zero_grad()
        return model.weight.detach().clone()

    whole, resumed = whole_and_resumed(script, tmp_path, size=size, die_at=3)
    assert torch.equal(whole, resumed)


def test_results_that_the_script_changes_are_recorded_as_they_were(tmp_path: Path) -> None:
    def script(run: shoal.Run) -> list[float]:
        model = run.model(linear())
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        mean = run.mean(torch.ones(1))
        mean.mul_(2)
        scores = run.evaluate(lambda x, y: F.mse_loss(model(x), y), data(), batch_size=4)
        scores["score"] *= 2
        for batch in run.batches(data(), batch_size=2):
            update(model, optimizer, batch)
        return [mean.item(), scores["score"]]

    whole, resumed = whole_and_resumed(script, tmp_path, size=2, die_at=2)
    assert whole == resumed


class Count:
    def __init__(self) -> None:
        self.values: Counter[str] = Counter()

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


def test_objects_kept_inside_the_loop_and_counters(tmp_path: Path) -> None:
    def script(run: shoal.Run) -> list[str]:
        model = run.model(linear())
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        count: Count | None = None
        for batch in run.batches(data(), batch_size=2):
            if count is None:
                count = Count()
                run.keep(count=count)
            update(model, optimizer, batch)
            count.values["steps"] += 1
        assert count is not None
        return sorted(count.values.elements())

    whole, resumed = whole_and_resumed(script, tmp_path, size=1, die_at=5)
    assert whole == resumed == ["steps"] * 8


@pytest.mark.parametrize("state", [{True: 1}, {"a": torch.eye(2).to_sparse()}, {"a": object()}])
def test_states_that_cannot_be_read_back_are_refused_at_once(state: dict[Any, Any]) -> None:
    class Odd:
        def state_dict(self) -> dict[Any, Any]:
            return state

        def load_state_dict(self, state: dict[Any, Any]) -> None:
            pass

    with pytest.raises(UsageError, match="the state of odd"):
        train_in_threads(1, lambda run: run.keep(odd=Odd()))


@pytest.mark.parametrize(("at", "leave"), [(2, False), (4, False), (2, True)])
def test_run_save_in_a_loop_is_of_that_step(at: int, leave: bool, tmp_path: Path) -> None:
    """In the last iteration, and before a `break`, too."""
    weights = {}

    def script(run: shoal.Run) -> None:
        model = run.model(linear())
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.batches(data(), batch_size=2):
            update(model, optimizer, batch)
            if run.step + 1 == at:
                weights[run.rank] = model.weight.detach().clone()
                run.save(mark="best")
                if leave:
                    break

    train_in_threads(2, script, hub=hub_of(2, tmp_path))
    store = LocalStore(tmp_path)
    assert marks(store) == {"best": f"step-{at:08}-g1"}
    state = read_state(store, load_manifest(store, f"step-{at:08}-g1"))
    assert torch.equal(state["models"]["model 1"]["weight"], weights[0])


def test_what_is_handed_over_after_a_loop_is_handed_over_again(tmp_path: Path) -> None:
    def script(run: shoal.Run) -> list[torch.Tensor]:
        body = run.model(linear())
        optimizer = run.optimizer(torch.optim.SGD(body.parameters(), lr=0.1))
        for batch in run.batches(data(), batch_size=2):
            update(body, optimizer, batch)
        head = run.model(nn.Linear(3, 1))
        second = run.optimizer(torch.optim.AdamW(head.parameters(), lr=0.1))
        run.save()
        for batch in run.batches(data(), batch_size=2):
            update(head, second, batch)
        return [body.weight.detach().clone(), head.weight.detach().clone()]

    whole = train_in_threads(1, script)[0]
    train_in_threads(1, script, hub=hub_of(1, tmp_path))
    store = LocalStore(tmp_path)
    for listed in published(store)[:-1]:  # the one made by run.save is the only one left
        store.remove(listed.name)
    assert [listed.step for listed in published(store)] == [8]
    resumed = train_in_threads(1, script, hub=hub_of(1, tmp_path, resumed=True))[0]
    assert torch.equal(whole[0], resumed[0])
    assert torch.equal(whole[1], resumed[1])


def test_saved_before_the_first_loop_it_starts_anew(tmp_path: Path) -> None:
    def script(run: shoal.Run) -> torch.Tensor:
        model = run.model(linear())
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        run.save()
        run.mean(1.0)
        for batch in run.batches(data(), batch_size=2):
            update(model, optimizer, batch)
        return model.weight.detach().clone()

    whole = train_in_threads(1, script, hub=hub_of(1, tmp_path))[0]
    store = LocalStore(tmp_path)
    store.remove(published(store)[0].name)
    assert [listed.step for listed in published(store)] == [0]
    assert torch.equal(train_in_threads(1, script, hub=hub_of(1, tmp_path, resumed=True))[0], whole)


def test_a_script_that_starts_again_goes_on_with_its_checkpoints(tmp_path: Path) -> None:
    """It raises in a void step while checkpoints are made: the ones after that are published too."""
    raised = []

    def script(run: shoal.Run) -> torch.Tensor:
        model = run.model(linear())
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.batches(data(), batch_size=2):
            run._session.saver.wait()
            update(model, optimizer, batch)
            if run.rank == 1 and not run.applied and not raised:
                raised.append(run.step)
                raise RuntimeError("in a void step")
        return model.weight.detach().clone()

    hub = hub_of(2, tmp_path)
    hub.fault = lambda rank, label: hub.number == 1 and rank == 0 and label.startswith("step 2,")
    results = train_in_threads(2, script, hub=hub, checkpoint_every="1")
    assert raised == [2]
    assert torch.equal(results[0], train_in_threads(2, script)[0])
    assert published(LocalStore(tmp_path))[0].step == 4


def test_a_script_that_never_reaches_the_checkpoint_is_an_error(tmp_path: Path) -> None:
    """Else it would end well with results on record and untrained weights."""

    def script(run: shoal.Run, epochs: int) -> None:
        model = run.model(linear())
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for epoch in run.epochs(epochs):
            for batch in epoch.batches(data(), batch_size=2):
                update(model, optimizer, batch)

    train_in_threads(1, lambda run: script(run, 3), hub=hub_of(1, tmp_path))
    text = texts.checkpoint_not_reached("step-[0-9]+-g1", loops=1, loop=3)
    with pytest.raises(CheckpointUnusable, match=text):
        train_in_threads(1, lambda run: script(run, 1), hub=hub_of(1, tmp_path, resumed=True))
