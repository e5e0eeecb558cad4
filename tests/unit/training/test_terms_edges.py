"""Where terms meet what else happens: results that do not travel, news that is out of date, resuming, restarting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.errors import CheckpointUnusable, WireError
from shoal.strategies.peers.peers import Briefed
from shoal.terms import Made, ScriptCall
from shoal.training import texts
from shoal.training.recovery.recovery import join_first
from shoal.training.script.call_results import MOST_BYTES, decode_result, encode_result
from shoal.training.script.call_terms import resume_difference
from shoal.training.script.script_calls import ScriptCalls
from shoal.values import Generation
from shoal.wire.messages import ExchangeBroken, Ready
from support.training import Crew, Hub, Killed, ThreadPeers, train_in_threads

SAMPLES = 40


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(2 * SAMPLES, dtype=torch.float64))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return -self.uses[index].sum() / len(index)


def data(samples: int = SAMPLES) -> TensorDataset:
    return TensorDataset(torch.arange(samples))


def step(run: shoal.Run, model: Uses, optimizer: torch.optim.Optimizer, index: torch.Tensor) -> None:
    model(index).backward()
    iteration = run._session.iteration
    assert iteration is not None
    if model.uses.grad is not None:  # else of a batch that is accumulated
        model.uses.grad.mul_(iteration.step_samples)
    optimizer.step()
    optimizer.zero_grad()


def begun(run: shoal.Run) -> tuple[Uses, torch.optim.Optimizer]:
    model = run.model(Uses())
    return model, run.optimizer(torch.optim.SGD([model.uses], lr=1.0))


class Waiting:
    """The members wait in their last loop until worker 2 waits to be let in, is in, or is gone."""

    def __init__(self, hub: Hub, last: int) -> None:
        self.hub, self._last = hub, last
        self._has_come = threading.Event()
        self.start: Callable[[int], None] = lambda _: None

    def here(self, run: shoal.Run) -> None:
        worker, hub = run._session.peers.worker, self.hub
        if run._session.place.loops < self._last or worker == 2:
            return
        if worker == 0 and not self._has_come.is_set():
            self._has_come.set()
            self.start(2)
        with hub.condition:
            assert hub.condition.wait_for(lambda: 2 in hub.waiting or 2 in hub.members or 2 in hub.dead, 60)


def job(hub: Hub, script: Callable[[shoal.Run, Waiting], Any], *, last: int) -> Crew:
    waiting = Waiting(hub, last)
    crew = Crew(hub, lambda run: script(run, waiting))
    waiting.start = crew.start
    for worker in (0, 1):
        crew.start(worker)
    return crew


def test_a_difference_behind_a_result_that_does_not_travel_costs_the_newcomer_alone_too() -> None:
    """It has to be let in for the result, and finds out as a member: the others go on without it."""

    def script(run: shoal.Run, waiting: Waiting) -> torch.Tensor:
        model, optimizer = begun(run)
        for (index,) in run.batches(data(), 2):
            step(run, model, optimizer, index)
        assert run.mean(torch.ones(MOST_BYTES)).mean() == 1.0
        for (index,) in run.batches(data(), 4 if run._session.peers.worker == 2 else 2):
            waiting.here(run)
            step(run, model, optimizer, index)
        return model.uses.detach()[:SAMPLES].clone()

    hub = Hub(2)
    crew = job(hub, script, last=2)
    results = crew.wait()
    assert set(results) == {0, 1}
    assert all(uses.tolist() == [2.0] * SAMPLES for uses in results.values())
    assert str(crew.turned_away[2]).startswith("loop 2: batch size is 2 in the job and 4 in this worker's script")
    assert hub.number == 3, "it was let in, and the others went on without it"


class Hasty(Hub):
    """Tells a newcomer that the loop which the members are in is over."""

    def _calls_for(self, worker: int, notice: Ready | ExchangeBroken) -> Briefed | None:
        told = super()._calls_for(worker, notice)
        if told is None or told.calls[-1].call.what != "loop":
            return told
        return Briefed(told.first, (*told.calls, Made(told.calls[-1].call)))


def test_a_newcomer_that_was_told_too_much_starts_again_with_what_is_true() -> None:
    runs = []

    def script(run: shoal.Run, waiting: Waiting) -> torch.Tensor:
        runs.append(run._session.peers.worker)
        model, optimizer = begun(run)
        for _ in range(2):
            for (index,) in run.batches(data(), 2):
                waiting.here(run)
                step(run, model, optimizer, index)
        return model.uses.detach()[:SAMPLES].clone()

    crew = job(Hasty(2), script, last=1)
    results = crew.wait()
    assert set(results) == {0, 1, 2}
    assert all(uses.tolist() == [2.0] * SAMPLES for uses in results.values())
    assert runs.count(2) == 2


class LeftOut(ThreadPeers):
    """A worker that the first generation is formed without: the coordinator tells it of the members' calls."""

    def await_generation(self, after: int) -> Generation:
        assert after == 0
        raise Briefed(0, (Made(ScriptCall.of("model")),))


def test_a_worker_that_is_left_out_of_the_first_generation_runs_its_script_as_a_newcomer() -> None:
    """Not as a member that has been let in before anything of its script was compared."""
    hub = Hub(2)
    assert join_first(LeftOut(hub, 0)) is None
    assert hub.waiting[0] == Ready(generation=0, seen=0, is_ahead=True)


# Resuming


def counting(terms: dict[str, Any], die_at: int | None = None) -> Callable[[shoal.Run], torch.Tensor]:
    def script(run: shoal.Run) -> torch.Tensor:
        model, optimizer = begun(run)
        choice = {"batch_size": 4, "epochs": 2, "accumulate": 1, "shuffle": True, "samples": SAMPLES} | terms
        samples = choice.pop("samples")
        for (index,) in run.batches(data(samples), **choice):
            if die_at is not None:
                run._session.saver.wait()
            if run.step == die_at:
                raise Killed
            step(run, model, optimizer, index)
        return model.uses.detach()[:SAMPLES].clone()

    return script


def hub_at(folder: Path, size: int, *, resumed: bool = False) -> Hub:
    store = LocalStore(folder)
    hub = Hub(size, publisher=StorePublisher(store, keep=9), store=store, is_resumed=resumed)
    hub.number = 10 if resumed else 0
    return hub


def interrupted(folder: Path, die_at: int) -> None:
    """Checkpoints of all steps before the one in which both workers die; five steps are an epoch."""
    crew = Crew(hub_at(folder, 2), counting({}, die_at), checkpoint_every="1")
    for worker in (0, 1):
        crew.start(worker)
    crew.wait()


@pytest.mark.parametrize(
    ("terms", "size"),
    [({"batch_size": 3}, 2), ({"accumulate": 2}, 2), ({"batch_size": 7}, 3), ({"epochs": None, "steps": 10}, 2)],
)
def test_a_resumed_script_may_cut_its_data_in_another_way(terms: dict[str, Any], size: int, tmp_path: Path) -> None:
    interrupted(tmp_path, die_at=4)
    results = train_in_threads(size, counting(terms), hub=hub_at(tmp_path, size, resumed=True))
    assert all(uses.tolist() == [2.0] * SAMPLES for uses in results)


def test_a_resumed_script_may_have_more_epochs(tmp_path: Path) -> None:
    interrupted(tmp_path, die_at=4)
    results = train_in_threads(2, counting({"epochs": 3}), hub=hub_at(tmp_path, 2, resumed=True))
    assert all(uses.tolist() == [3.0] * SAMPLES for uses in results)


@pytest.mark.parametrize(
    ("terms", "seed", "changed"),
    [
        ({"samples": SAMPLES + 20}, 0, ("number of samples", "40", "60")),
        ({"shuffle": False}, 0, ("order of samples", "shuffled with seed 0", "as they stand")),
        ({}, 1, ("order of samples", "shuffled with seed 0", "shuffled with seed 1")),
    ],
)
def test_a_place_inside_an_epoch_is_of_no_use_with_other_samples(
    terms: dict[str, Any], seed: int, changed: tuple[str, str, str], tmp_path: Path
) -> None:
    interrupted(tmp_path, die_at=4)
    text = texts.loop_changed("step-[0-9]+-g1", changed, loop=1, place="epoch 1, 24 samples")
    with pytest.raises(CheckpointUnusable, match=text):
        train_in_threads(2, counting(terms), hub=hub_at(tmp_path, 2, resumed=True), seed=seed)


def test_a_finished_loop_may_be_trained_on_with_other_samples(tmp_path: Path) -> None:
    train_in_threads(2, counting({}), hub=hub_at(tmp_path, 2), checkpoint_every="end")
    terms = {"samples": SAMPLES + 8, "epochs": 3}
    results = train_in_threads(2, counting(terms), hub=hub_at(tmp_path, 2, resumed=True), seed=3)
    assert all(uses.tolist() == [3.0] * SAMPLES for uses in results)


def test_a_loop_of_another_epoch_is_not_the_checkpoints() -> None:
    assert resume_difference({"first epoch": "3"}, {"first epoch": "2"}, is_inside=False) == ("first epoch", "3", "2")
    assert resume_difference({}, {"first epoch": "2"}, is_inside=True) is None


# What travels


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        None,
        {"accuracy": 0.5, "loss": float("nan")},
        torch.tensor(2.0, dtype=torch.float64),
        torch.arange(6).reshape(2, 3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.empty(0, 3),
        [torch.tensor(True), (1, "a")],
    ],
)
def test_small_results_come_through_as_they_were(value: Any) -> None:
    data = encode_result(value)
    assert data is not None
    assert encode_result(decode_result(data)) == data


def test_large_results_and_what_a_state_cannot_hold_do_not_travel() -> None:
    assert encode_result(torch.zeros(MOST_BYTES)) is None
    assert encode_result(torch.eye(3).to_sparse()) is None
    assert encode_result(object()) is None


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x92\xc4\x01x\x90", b"\x00" * 50])
def test_bytes_that_are_no_result_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_result(data)


def test_calls_that_do_not_follow_those_that_are_known_are_refused() -> None:
    script = ScriptCalls(ThreadPeers(Hub(1), 0))
    with pytest.raises(WireError, match="index 3"):
        script.learn(3, (Made(ScriptCall.of("mean")),))
