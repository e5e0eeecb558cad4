"""Checkpoints of training in threads: a resumed job is the one that was never interrupted, bit for bit.

The model counts how often each sample is used, so that every sample once per epoch is proved from the model's side.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.checkpoint.published.catalogue import load_manifest, marks, published
from shoal.checkpoint.published.reader import read_state
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.errors import CheckpointUnusable, UsageError
from shoal.events import CheckpointDeferred, CheckpointRefused, CheckpointStarted, Resumed
from shoal.training import texts
from support.training import Hub, train_in_threads

SAMPLES = 61
EPOCHS = 3
LAYERS = 12


class Killed(BaseException):
    """Ends a worker in the middle of its script."""


class Net(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.uses = nn.Embedding(SAMPLES, 1)
        self.first = nn.Linear(5, LAYERS)
        self.norm = nn.BatchNorm1d(LAYERS // 2)
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(LAYERS, 3)
        generator = torch.Generator().manual_seed(5)  # threads share torch's own
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
            self.uses.weight.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x).reshape(len(x), LAYERS // 2, 2)).flatten(1)
        out: torch.Tensor = self.last(self.drop(F.relu(hidden)))
        return out


def rows(count: int, width: int) -> torch.Tensor:
    """The same for all workers: as threads of one process they share torch's own generator."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(3))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 5, generator=generator)
    return TensorDataset(torch.arange(SAMPLES), x, torch.randint(3, (SAMPLES,), generator=generator))


def nothing(_: shoal.Run) -> None:
    pass


def script(*, die_at: int | None = None, before: Callable[[shoal.Run], None] = nothing) -> Any:
    """Two models' worth of state: AdamW with a schedule, BatchNorm, Dropout, a counter of uses of each sample."""

    def train(run: shoal.Run) -> dict[str, Any]:
        model = run.model(Net(dropout=0.2 if run.world_size == 1 else 0.0))
        weights = [p for name, p in model.named_parameters() if name != "uses.weight"]
        optimizer = run.optimizer(torch.optim.AdamW(weights, lr=0.01), clip_norm=1.0)
        counting = run.optimizer(torch.optim.SGD([model.uses.weight], lr=1.0))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        run.keep(schedule=schedule)
        losses, scores = [], []
        for epoch in run.epochs(EPOCHS):
            for index, x, y in epoch.batches(data(), batch_size=3):
                before(run)
                if run.step == die_at:
                    raise Killed
                # The gradient of `uses` is -1/total for each use; times the total, SGD adds one.
                uses = -model.uses(index).sum() / max(1, len(index))
                loss = F.cross_entropy(model(x), y)
                (loss + uses).backward()
                model.uses.weight.grad.mul_(run._session.iteration.step_samples)  # type: ignore[union-attr]  after backward it has one
                optimizer.step()
                counting.step()
                schedule.step()
                optimizer.zero_grad()
                counting.zero_grad()
                losses.append(loss.item())
            scores.append(run.evaluate(lambda _, x, y: F.cross_entropy(model(x), y), data(), batch_size=8)["score"])
        return {
            "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
            "rate": schedule.get_last_lr(),
            "scores": scores,
            "steps": run.step,
        }

    return train


def hub_of(size: int, folder: Path, *, resumed: bool = False, keep: int = 3) -> Hub:
    store = LocalStore(folder)
    return Hub(size, publisher=StorePublisher(store, keep=keep), store=store, is_resumed=resumed)


def interrupted(size: int, folder: Path, *, die_at: int, every: str) -> None:
    """Steps here are faster than any disk: each waits for the checkpoint before, so that none is put off."""
    patient = script(die_at=die_at, before=lambda run: run._session.saver.wait())
    with pytest.raises(Killed):
        train_in_threads(size, patient, hub=hub_of(size, folder), checkpoint_every=every)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, tensor in one["state"].items():
        assert torch.equal(tensor, other["state"][name]), name
    assert {**one, "state": None} == {**other, "state": None}


def assert_each_sample_once(result: dict[str, Any]) -> None:
    uses = result["state"]["uses.weight"].flatten()
    assert (uses - EPOCHS).abs().max().item() < 1e-5


@pytest.fixture(scope="module")
def uninterrupted() -> dict[int, dict[str, Any]]:
    return {size: train_in_threads(size, script())[0] for size in (1, 2, 4)}


@pytest.mark.parametrize("point", [*range(3), *(pytest.param(point, marks=pytest.mark.long) for point in range(3, 30))])
def test_resumed_at_a_random_point_it_is_bit_identical(
    point: int, uninterrupted: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    draw = random.Random(point)
    size = (1, 2, 4)[point % 3]
    whole = uninterrupted[size]
    every = draw.choice([1, 2, 3, 7])
    die_at = draw.randrange(every, whole["steps"])
    interrupted(size, tmp_path, die_at=die_at, every=str(every))
    hub = hub_of(size, tmp_path, resumed=True)
    hub.number = 10  # generations go on counting
    result = train_in_threads(size, script(), hub=hub, checkpoint_every=str(every))
    resumed = next(event for event in hub.events if isinstance(event, Resumed))
    assert die_at - 2 * every <= resumed.step <= die_at
    for rank in range(size):
        assert_same(whole, result[rank])
    assert_each_sample_once(whole)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 4), (4, 1), (3, 2)])
def test_every_sample_counts_once_with_another_number_of_workers(before: int, after: int, tmp_path: Path) -> None:
    interrupted(before, tmp_path, die_at=5, every="2")
    hub = hub_of(after, tmp_path, resumed=True)
    hub.number = 10
    result = train_in_threads(after, script(), hub=hub)[0]
    assert_each_sample_once(result)
    assert next(event for event in hub.events if isinstance(event, Resumed)).workers == before


def test_a_finished_job_resumed_has_its_result_at_once(
    uninterrupted: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    train_in_threads(2, script(), hub=hub_of(2, tmp_path))
    hub = hub_of(2, tmp_path, resumed=True)
    hub.number = 10
    result = train_in_threads(2, script(die_at=uninterrupted[2]["steps"]), hub=hub)[0]
    assert_same(uninterrupted[2], result)


def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(
    uninterrupted: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    interrupted(2, tmp_path, die_at=9, every="4")
    newest, before = published(LocalStore(tmp_path))[:2]
    part = tmp_path / newest.name / "part-1-of-2.safetensors"
    content = bytearray(part.read_bytes())
    content[-5] ^= 1
    part.write_bytes(content)
    hub = hub_of(2, tmp_path, resumed=True)
    hub.number = 10
    result = train_in_threads(2, script(), hub=hub)[0]
    refused = next(event for event in hub.events if isinstance(event, CheckpointRefused))
    assert (refused.checkpoint, refused.file) == (newest.name, "part-1-of-2.safetensors")
    assert "checksum" in refused.reason
    assert next(event for event in hub.events if isinstance(event, Resumed)).checkpoint == before.name
    assert_same(uninterrupted[2], result)


def test_with_every_checkpoint_damaged_all_are_named(tmp_path: Path) -> None:
    interrupted(1, tmp_path, die_at=9, every="4")
    for listed in published(LocalStore(tmp_path)):
        (tmp_path / listed.name / "part-0-of-1.safetensors").unlink()
    with pytest.raises(CheckpointUnusable, match=r"step-00000008-g1/part-0-of-1.safetensors is missing.*step-00000004"):
        train_in_threads(1, script(), hub=hub_of(1, tmp_path, resumed=True))


def test_a_checkpoint_of_another_model_says_which_tensors_differ(tmp_path: Path) -> None:
    interrupted(2, tmp_path, die_at=5, every="4")

    def other(run: shoal.Run) -> None:
        model = run.model(nn.ModuleDict({"first": nn.Linear(6, LAYERS), "extra": nn.Linear(1, 1)}))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in run.batches(data(), batch_size=3):
            optimizer.step()

    with pytest.raises(CheckpointUnusable) as caught:
        train_in_threads(2, other, hub=hub_of(2, tmp_path, resumed=True))
    text = str(caught.value)
    assert texts.only_in_script("extra.bias, extra.weight") in text
    kinds = {"in_state": "float32 [12, 5]", "in_script": "float32 [12, 6]"}
    assert texts.tensor_differs("first.weight", **kinds) in text
    assert "last.bias" in text


def test_results_that_the_script_did_not_ask_for_before_are_an_error(tmp_path: Path) -> None:
    interrupted(1, tmp_path, die_at=3, every="2")

    def asking(run: shoal.Run) -> None:
        run.mean(1.0)

    text = texts.resume_same_script(texts.more_results_than_recorded(1, called=1, recorded=0))
    with pytest.raises(CheckpointUnusable, match=text):
        train_in_threads(1, asking, hub=hub_of(1, tmp_path, resumed=True))


def test_a_slow_store_puts_the_next_one_off(tmp_path: Path) -> None:
    import threading

    release = threading.Event()

    class Slow(LocalStore):
        def write(self, name: str, chunks: Any) -> None:
            release.wait(60)
            super().write(name, chunks)

    hub = hub_of(2, tmp_path)
    hub.store = Slow(tmp_path)

    def let_go(run: shoal.Run) -> None:
        if run.step >= 6:
            release.set()

    train_in_threads(2, script(before=let_go), hub=hub, checkpoint_every="2")
    deferred = [event.step for event in hub.events if isinstance(event, CheckpointDeferred)]
    started = [event.step for event in hub.events if isinstance(event, CheckpointStarted)]
    assert deferred[0] == 4
    assert started[0] == 2
    assert started[1] > 6
    assert started[-1] == 33


def test_parameters_changed_by_the_script_are_captured_whole(tmp_path: Path) -> None:
    """Weights that are changed in place before the update are copied at once from then on."""

    def train(run: shoal.Run) -> torch.Tensor:
        model = run.model(nn.Linear(40, 40))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, _ in run.batches(TensorDataset(rows(32, 40), torch.zeros(32)), batch_size=4):
            with torch.no_grad():
                model.weight.mul_(0.5)
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach().clone()

    hub = hub_of(1, tmp_path, keep=100)
    weight = train_in_threads(1, train, hub=hub, checkpoint_every="1")[0]
    store = LocalStore(tmp_path)
    last = load_manifest(store, published(store)[0].name)
    assert last.about.step == 8
    assert torch.equal(read_state(store, last)["models"]["model 1"]["weight"], weight)


def test_a_marked_one_is_of_the_state_as_it_was(tmp_path: Path) -> None:
    weights = {}

    def train(run: shoal.Run) -> None:
        model = run.model(nn.Linear(2, 1))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for epoch in run.epochs(4):
            for x, y in epoch.batches(TensorDataset(rows(8, 2), torch.zeros(8, 1)), batch_size=2):
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            if epoch.number < 2:
                run.save(mark="best")
                weights[epoch.number] = model.weight.detach().clone()

    train_in_threads(2, train, hub=hub_of(2, tmp_path, keep=1))
    store = LocalStore(tmp_path)
    manifests = [load_manifest(store, listed.name) for listed in published(store)]
    assert [manifest.about.step for manifest in manifests] == [8, 4]
    assert manifests[1].about.mark == "best"
    assert torch.equal(read_state(store, manifests[1])["models"]["model 1"]["weight"], weights[1])


def test_a_loop_left_by_break_is_over_when_resumed(tmp_path: Path) -> None:
    seen: list[int] = []

    def train(run: shoal.Run) -> torch.Tensor:
        model = run.model(nn.Linear(2, 1))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in run.batches(TensorDataset(rows(16, 2), torch.zeros(16, 1)), batch_size=2):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(run.step)
            if run.step == 2:
                break
        return model.weight.detach().clone()

    first = train_in_threads(2, train, hub=hub_of(2, tmp_path))[0]
    seen.clear()
    hub = hub_of(2, tmp_path, resumed=True)
    hub.number = 10
    assert torch.equal(train_in_threads(2, train, hub=hub)[0], first)
    assert seen == []


def test_a_checkpoint_that_is_there_already_gets_the_mark(tmp_path: Path) -> None:
    def train(run: shoal.Run) -> None:
        model = run.model(nn.Linear(2, 1))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for epoch in run.epochs(2):
            for x, y in epoch.batches(TensorDataset(rows(8, 2), torch.zeros(8, 1)), batch_size=2):
                run._session.saver.wait()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            if epoch.number == 0:
                run.save(mark="best")

    train_in_threads(2, train, hub=hub_of(2, tmp_path, keep=1), checkpoint_every="2")
    store = LocalStore(tmp_path)
    assert [listed.step for listed in published(store)] == [4, 2]
    assert marks(store) == {"best": "step-00000002-g1"}


@pytest.mark.parametrize("mark", ["a/b", "..", "x" * 65, 5])
def test_marks_are_plain_names(mark: Any) -> None:
    def train(run: shoal.Run) -> None:
        run.save(mark=mark)

    with pytest.raises(UsageError, match=re.escape(texts.bad_mark(mark))):
        train_in_threads(1, train)


@pytest.mark.parametrize("saved_by", ["the end of the script", "run.save"])
def test_what_follows_a_loop_comes_again_when_resumed(saved_by: str, tmp_path: Path) -> None:
    """A schedule that steps once per epoch, after the loop, is not a step ahead in a job that trains on."""

    def train(run: shoal.Run, epochs: int) -> tuple[torch.Tensor, list[float]]:
        model = run.model(nn.Linear(2, 1))
        with torch.no_grad():
            model.weight.fill_(1.0)
            model.bias.fill_(1.0)
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        run.keep(schedule=schedule)
        rates = []
        for epoch in run.epochs(epochs):
            rates.append(optimizer.param_groups[0]["lr"])
            for x, y in epoch.batches(TensorDataset(torch.ones(8, 2), torch.zeros(8, 1)), batch_size=2):
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            if saved_by == "run.save":
                run.save()
        return model.weight.detach().clone(), rates

    whole, rates = train_in_threads(2, lambda run: train(run, 5))[0]
    train_in_threads(2, lambda run: train(run, 3), hub=hub_of(2, tmp_path))
    hub = hub_of(2, tmp_path, resumed=True)
    hub.number = 10
    weight, resumed_rates = train_in_threads(2, lambda run: train(run, 5), hub=hub)[0]
    assert resumed_rates[3:] == rates[3:]
    assert torch.equal(weight, whole)
