"""A codec's residual is state of its worker: it goes back, stays, is kept and is dropped as its steps are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.checkpoint.published.catalogue import load_manifest, published, verify
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.events import Advised, StateCopied, StepVoided
from support.sparse_codec import Sparse
from support.training import Crew, Hub, train_in_threads

START = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 5, generator=generator)
    return TensorDataset(x, x[:, :2].sin())


class Interrupted(BaseException):
    """Ends a job in the middle of its script."""


class Script:
    """Trains a little; `seen` has what every worker's codec had left out when its script was done."""

    def __init__(self, die_at: int | None = None) -> None:
        self._die_at = die_at
        self.seen: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, run: shoal.Run) -> dict[str, torch.Tensor]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        for x, y in run.batches(data(), batch_size=4, steps=15):
            if run.step == self._die_at:
                raise Interrupted
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        peers = run._session.peers
        self.seen[peers.worker] = peers.codec.state()
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def once(worker: int, text: str) -> Callable[[int, str], bool]:
    left = {worker}

    def happens(at: int, label: str) -> bool:
        if at in left and text in label:
            left.discard(at)
            return True
        return False

    return happens


def trained(size: int, script: Script, **options: Any) -> tuple[Hub, list[dict[str, torch.Tensor]]]:
    hub = Hub(size, codec=Sparse, **options)
    return hub, train_in_threads(size, script, hub=hub, bucket_mb=0.0001)


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def advice(hub: Hub) -> list[str]:
    return [event.text for event in hub.events if isinstance(event, Advised) and "codec" in event.text]


def test_replicas_are_equal_and_something_was_left_out() -> None:
    script = Script()
    _, states = trained(3, script)
    for state in states[1:]:
        assert_equal(state, states[0])
    exact = train_in_threads(3, Script(), bucket_mb=0.0001)
    assert any(not torch.equal(exact[0][name], tensor) for name, tensor in states[0].items())
    assert all(any(tensor.any() for tensor in state.values()) for state in script.seen.values())


def test_it_goes_back_when_a_step_is_redone() -> None:
    calm, broken = Script(), Script()
    _, expected = trained(3, calm)
    # The first group of gradients is whole, and encoded by all, when the step breaks.
    hub, states = trained(3, broken, late=once(1, "step 7, exchange 0 of model 1, gradients 0"))
    assert any(isinstance(event, StepVoided) for event in hub.events)
    assert not any(isinstance(event, StateCopied) for event in hub.events)
    for worker in range(3):
        assert_equal(states[worker], expected[worker])
        assert_equal(broken.seen[worker], calm.seen[worker])


def test_it_stays_where_the_step_was_applied_elsewhere_and_is_copied() -> None:
    """What this worker has sent is in the sum: with its old residual it would send that again."""
    calm, broken = Script(), Script()
    _, expected = trained(2, calm)
    hub, states = trained(2, broken, late=once(1, "step 7, exchange 0 of model 1, gradients 1, flags"))
    assert any(isinstance(event, StateCopied) and event.worker == 1 for event in hub.events)
    for worker in range(2):
        assert_equal(states[worker], expected[worker])
        assert_equal(broken.seen[worker], calm.seen[worker])


def test_a_dead_workers_is_lost_and_said_to_be() -> None:
    hub = Hub(3, codec=Sparse, kill=once(2, "step 7, exchange 0 of model 1, gradients 1"))
    crew = Crew(hub, Script(), bucket_mb=0.0001)
    for worker in range(3):
        crew.start(worker)
    states = crew.wait()
    assert_equal(states[0], states[1])
    assert any("the gradients of worker 2 is lost" in text for text in advice(hub))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "checkpoints")


def interrupted(store: LocalStore, codec: Callable[[], Codec] = Sparse) -> None:
    """A job of two workers that ends in its tenth step, and leaves a checkpoint of step 8."""
    hub = Hub(2, codec=codec, store=store, publisher=StorePublisher(store, 3))
    with pytest.raises(Interrupted):
        train_in_threads(2, Script(die_at=10), hub=hub, bucket_mb=0.0001, checkpoint_every="4")


def resumed(store: LocalStore, size: int) -> tuple[Hub, Script, list[dict[str, torch.Tensor]]]:
    script, hub = Script(), Hub(size, codec=Sparse, store=store, publisher=StorePublisher(store, 3), is_resumed=True)
    return hub, script, train_in_threads(size, script, hub=hub, bucket_mb=0.0001)


def test_a_checkpoint_keeps_it_by_rank_and_as_many_workers_go_on_bit_for_bit(store: LocalStore) -> None:
    interrupted(store)
    manifest = load_manifest(store, published(store)[0].name)
    names = [entry.name for entry in manifest.tensors if entry.name.startswith("ranks/")]
    assert {name.split("/")[1] for name in names} == {"0", "1"}
    assert not verify(store, manifest)
    calm = Script()
    _, expected = trained(2, calm)
    hub, script, states = resumed(store, 2)
    assert not advice(hub)
    for worker in range(2):
        assert_equal(states[worker], expected[worker])
        assert_equal(script.seen[worker], calm.seen[worker])


def test_with_another_number_of_workers_it_is_dropped_and_said_to_be(store: LocalStore) -> None:
    interrupted(store)
    hub, _, states = resumed(store, 3)
    assert_equal(states[0], states[2])
    (text,) = advice(hub)
    assert "has it of 2 workers with all-reduce, and 3 go on from there with all-reduce" in text


def test_without_a_codec_a_checkpoint_has_nothing_of_single_workers(store: LocalStore) -> None:
    interrupted(store, codec=Identity)
    manifest = load_manifest(store, published(store)[0].name)
    assert not any(entry.name.startswith("ranks/") for entry in manifest.tensors)
