"""A lossy codec between workers and servers: what it leaves out of pushes comes later, or is still in a residual.

Servers' values and all residuals together are what every sample's gradient adds up to, once: whatever happens. Workers
and servers are threads; servers see no worker's memory, as on other machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.checkpoint.published.catalogue import published
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.codecs.registry import codec_by_name
from shoal.errors import Aborted
from shoal.events import Advised, StepVoided
from shoal.job_config import JobConfig
from shoal.parameters.client.parameter_client import ParameterClient
from shoal.strategies.choosing import make_strategy
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Strategy
from support.offers import CODECS, offer
from support.server_groups import Group, group_of
from support.training import Crew, Hub, Killed

SAMPLES, BATCH, EPOCHS, WORKERS = 96, 4, 3, 2
CODEC = "sparse:above=3"  # sends the largest of what a batch touches
PATIENCE = 60.0  # seconds
WEIGHTS = torch.linspace(0.1, 1.0, SAMPLES)  # of samples: the large ones leave first
SERVED = {"strategy": "parameter-server", "staleness_scaling": "none"}
MODES = {"synchronous": SERVED, "asynchronous": {**SERVED, "consistency": "asynchronous"}}

every_mode = pytest.mark.parametrize("mode", MODES)
Inside = Callable[[shoal.Run], None]


@pytest.fixture(autouse=True)
def offered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("site")
    offer(folder, "shoal.codecs", **CODECS)
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def group() -> Iterator[Group]:
    with group_of(3, replicas=2) as made:
        yield made


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return -(WEIGHTS[index] * self.uses[index]).sum() / len(index)


class Job:
    """Trains to its end; `lost` is what died with workers."""

    def __init__(self, group: Group, mode: str, inside: Inside = lambda _: None) -> None:
        self.group = group
        self.lost = torch.zeros(SAMPLES)
        self.results: dict[int, Any] = {}
        self.crew: Crew | None = None
        self._mode = mode
        self.inside = inside
        self._clients: dict[int, ParameterClient] = {}
        self._before: dict[int, Mapping[str, torch.Tensor]] = {}  # by worker: its residual before the present step

    def run(self, hub: Hub, **options: Any) -> None:
        hub.codec, hub.codec_text = partial(codec_by_name, CODEC), CODEC
        self.crew = Crew(hub, self.train, self._make, **MODES[self._mode], **options)
        for worker in range(hub.size):
            self.crew.start(worker)
        self.results = self.crew.wait()

    def assert_whole(self) -> None:
        """Nothing was lost, and nothing counted twice."""
        left = sum((result["left"] for result in self.results.values()), self.lost)
        for result in self.results.values():
            torch.testing.assert_close(result["uses"] + left, EPOCHS * WEIGHTS, rtol=0, atol=1e-4)

    def die(self, run: shoal.Run) -> None:
        """What the worker's pushes so far have left out goes with it; its present one was never committed."""
        self.lost = self.lost + left_out(self._before[run._session.peers.worker], run)
        raise Killed

    def _make(self, replica: Replica, config: JobConfig) -> Strategy:
        worker = replica.peers.worker
        if worker not in self._clients:
            self._clients[worker] = self.group.client(worker, shares_memory=False)
        return make_strategy(replica, config, self._clients[worker])

    def train(self, run: shoal.Run) -> dict[str, torch.Tensor]:
        model = run.model(Uses())
        # A use is -1 over the step's samples in the gradient, and every step has as many: SGD adds one with that rate.
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=rate_of(run)))
        for (index,) in run.batches(TensorDataset(torch.arange(SAMPLES)), batch_size=BATCH, epochs=EPOCHS):
            self._before[run._session.peers.worker] = run._session.peers.codec.state()
            model(index).backward()
            self.inside(run)
            optimizer.step()
            optimizer.zero_grad()
        return {"uses": model.uses.detach().clone(), "left": left_out(run._session.peers.codec.state(), run)}


def rate_of(run: shoal.Run) -> float:
    return BATCH * (1.0 if run._session.strategy.manners.is_free else run._session.config.workers)


def left_out(state: Mapping[str, torch.Tensor], run: shoal.Run) -> torch.Tensor:
    """Of the uses, by this worker's pushes so far."""
    found = torch.zeros(SAMPLES)
    for name, tensor in state.items():
        start = int(name.split()[1])
        found[start : start + len(tensor)] -= rate_of(run) * tensor
    return found


def once(worker: int, step: int, action: Inside) -> Inside:
    """The action, in the first iteration of a worker that is at this step or later, after backward."""
    done: list[int] = []

    def inside(run: shoal.Run) -> None:
        if not done and run._session.peers.worker == worker and run.step >= step:
            done.append(run.step)
            action(run)

    return inside


@every_mode
def test_values_and_residuals_are_everything(mode: str, group: Group) -> None:
    job = Job(group, mode)
    job.run(Hub(WORKERS))
    job.assert_whole()
    assert sum(float(result["left"].abs().sum()) for result in job.results.values()) > 1, (
        "the codec leaves something out"
    )


@every_mode
def test_a_void_push_that_was_encoded_puts_the_residual_back(mode: str, group: Group) -> None:
    def voided(run: shoal.Run) -> None:
        iteration = run._session.iteration
        assert iteration is not None
        iteration.mark_void("a push", Aborted("on purpose"))

    job, hub, times = Job(group, mode), Hub(WORKERS), (4, 8, 12, 16)
    voids = [once(1, step, voided) for step in times]
    job.inside = lambda run: [void(run) for void in voids][-1]
    job.run(hub)
    assert sum(isinstance(event, StepVoided) and event.worker == 1 for event in hub.events) == len(times)
    job.assert_whole()


@every_mode
def test_a_killed_workers_residual_is_all_that_is_lost(mode: str, group: Group) -> None:
    job, hub = Job(group, mode), Hub(3)
    job.inside = once(1, 5, job.die)
    job.run(hub)
    assert set(job.results) == {0, 2} and job.lost.any()
    assert any("of worker 1 is lost with it" in event.text for event in hub.events if isinstance(event, Advised))
    job.assert_whole()


@every_mode
@pytest.mark.parametrize("point", ["recorded", "applied"])
def test_a_killed_server_costs_nothing(mode: str, point: str, group: Group) -> None:
    job = Job(group, mode, once(0, 5, lambda _: group.crash(1, point)))
    job.run(Hub(WORKERS))
    assert group.has_died(1)
    job.assert_whole()


@every_mode
def test_a_newcomer_starts_with_nothing_left_out(mode: str, group: Group) -> None:
    job, hub = Job(group, mode), Hub(WORKERS)

    def comes(_run: shoal.Run) -> None:
        assert job.crew is not None
        job.crew.start(WORKERS)
        limit = time.monotonic() + PATIENCE
        while not hub.is_wished:
            assert time.monotonic() < limit, "the newcomer did not come to the loop"
            time.sleep(0.005)

    job.inside = once(0, 2, comes)
    job.run(hub)
    assert set(job.results) == {0, 1, 2}
    job.assert_whole()


@every_mode
def test_a_resumed_job_goes_on_with_what_was_left_out(mode: str, group: Group, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)

    def dies(run: shoal.Run) -> None:
        run._session.saver.wait()  # steps here are faster than any disk
        if run.step >= 14 and published(store):
            raise Killed

    Job(group, mode, dies).run(
        Hub(WORKERS, publisher=StorePublisher(store, keep=100), store=store), checkpoint_every="4"
    )
    hub = Hub(WORKERS, publisher=StorePublisher(store, keep=100), store=store, is_resumed=True)
    with group_of(3, replicas=2) as fresh:
        job = Job(fresh, mode)
        job.run(hub, resume="an earlier run", checkpoint_every="never")
        job.assert_whole()
    assert not any("is dropped" in event.text for event in hub.events if isinstance(event, Advised))


def test_what_all_reduce_left_out_is_dropped_when_servers_take_over(group: Group, tmp_path: Path) -> None:
    """A residual of gradients in groups says nothing about blocks."""
    store = LocalStore(tmp_path)

    def dies(run: shoal.Run) -> None:
        run._session.saver.wait()
        if run.step >= 14 and published(store):
            raise Killed

    job, named = Job(group, "synchronous", dies), {"codec": partial(codec_by_name, CODEC), "codec_text": CODEC}
    hub = Hub(WORKERS, publisher=StorePublisher(store, keep=100), store=store, **named)
    crew = Crew(hub, job.train, checkpoint_every="4")
    for worker in range(WORKERS):
        crew.start(worker)
    assert not crew.wait()
    hub = Hub(WORKERS, publisher=StorePublisher(store, keep=100), store=store, is_resumed=True)
    job.inside = lambda _: None
    job.run(hub, resume="an earlier run", checkpoint_every="never")
    (text,) = [event.text for event in hub.events if isinstance(event, Advised) and "is dropped" in event.text]
    assert "of 2 workers with all-reduce, and 2 go on from there with parameter-server" in text
