"""Scripts that say something else than the job's: newcomers end alone, first workers end the job, with both values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.errors import WorkersDisagree
from shoal.events import StateCopied, StepVoided
from shoal.training.script.script_calls import ADVICE
from shoal.training.script.texts import DATA_ADVICE
from support.training import Crew, Hub, train_in_threads

SAMPLES = 48
TERMS: dict[str, Any] = {
    "width": 3,
    "dropout": 0.5,
    "samples": SAMPLES,
    "batch": 4,
    "later batch": 4,
    "epochs": 3,
    "steps": None,
    "accumulate": 1,
    "shuffle": True,
    "optimizer": torch.optim.AdamW,
    "weight decay": 0.01,
    "learning rate": 0.01,
    "clip": None,
    "kept": "schedule",
    "held out": 16,
    "shift": 0.0,
}


class Uses(nn.Module):
    """Parameter i counts the uses of sample i."""

    def __init__(self, terms: dict[str, Any]) -> None:
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(2 * SAMPLES, dtype=torch.float64))
        self.layer = nn.Linear(4, terms["width"])
        self.drop = nn.Dropout(terms["dropout"])

    def forward(self, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).pow(2).mean() - self.uses[index].sum() / len(index)


def data(samples: int, shift: float = 0.0) -> TensorDataset:
    return TensorDataset(torch.arange(samples), torch.ones(samples, 4) + shift)


def script(terms_of: Callable[[int], dict[str, Any]], between: Callable[[shoal.Run], None]) -> Callable[..., Any]:
    """A short loop, a mean and an evaluation, then nested loops; each worker has its own terms."""

    def train(run: shoal.Run) -> torch.Tensor:
        terms = terms_of(run._session.peers.worker)
        model = run.model(Uses(terms))
        counting = run.optimizer(torch.optim.SGD([model.uses], lr=1.0))
        kind, rate = terms["optimizer"], terms["learning rate"]
        other = kind(model.layer.parameters(), lr=rate, weight_decay=terms["weight decay"])
        training = run.optimizer(other, clip_norm=terms["clip"])
        run.keep(**{terms["kept"]: torch.optim.lr_scheduler.StepLR(training, 1)})

        def step(index: torch.Tensor, x: torch.Tensor) -> None:
            between(run)
            model(index, x).backward()
            iteration = run._session.iteration
            assert iteration is not None
            if model.uses.grad is not None:
                model.uses.grad.mul_(iteration.step_samples)
            for optimizer in (counting, training):
                optimizer.step()
                optimizer.zero_grad()

        order = {"shuffle": terms["shuffle"], "accumulate": terms["accumulate"]}
        for index, x in run.batches(
            data(terms["samples"], terms["shift"]), terms["batch"], steps=terms["steps"], **order
        ):
            step(index, x)
        assert run.mean(3.0) == 3.0
        run.evaluate(lambda _, x: x.mean(), data(terms["held out"]), 4)
        for epoch in run.epochs(terms["epochs"]):
            for index, x in epoch.batches(data(terms["samples"]), terms["later batch"]):
                step(index, x)
        return model.uses.detach()[:SAMPLES].clone()

    return train


class Joining:
    """A job of two workers, and a third that comes in the middle of its second nested loop with terms of its own.

    The members wait there until the newcomer is done, or waits to be let in with nothing more to compare.
    """

    def __init__(self, **other: Any) -> None:
        self.hub = Hub(2)
        self._other = {name.replace("_", " "): value for name, value in other.items()}
        self._has_come = threading.Event()
        self.crew = Crew(self.hub, script(self._terms, self._between))
        for worker in (0, 1):
            self.crew.start(worker)

    def _terms(self, worker: int) -> dict[str, Any]:
        return TERMS | (self._other if worker == 2 else {})

    def _between(self, run: shoal.Run) -> None:
        if run._session.place.loops < 3 or run._session.peers.worker == 2:
            return
        if run._session.peers.worker == 0 and not self._has_come.is_set():
            self._has_come.set()
            self.crew.start(2)
        hub = self.hub
        with hub.condition:
            assert hub.condition.wait_for(lambda: 2 in hub.waiting or 2 in hub.members or 2 in hub.dead, 60)

    def run(self) -> dict[int, torch.Tensor]:
        results = self.crew.wait()
        for uses in results.values():
            assert uses.tolist() == [4.0] * SAMPLES
        return results


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"width": 5}, "model 1: parameter 'layer.weight' is [3, 4] float32 in the job and [5, 4] float32 in this"),
        ({"dropout": 0.1}, "model 1: module 'drop' is Dropout(p=0.5, inplace=False) in the job and Dropout(p=0.1, inp"),
        ({"optimizer": torch.optim.SGD}, "optimizer 2: class is AdamW in the job and SGD in this worker's script"),
        ({"weight_decay": 0.1}, "optimizer 2: weight_decay of group 1 is 0.01 in the job and 0.1 in this worker's"),
        ({"clip": 1.0}, "optimizer 2: clip_norm is None in the job and 1.0 in this worker's script"),
        ({"kept": "other"}, "kept objects 1: what comes first that differs is schedule StepLR in the job and other St"),
        ({"batch": 2}, "loop 1: batch size is 4 in the job and 2 in this worker's script"),
        ({"samples": 60}, "loop 1: number of samples is 48 in the job and 60 in this worker's script"),
        ({"shuffle": False}, "loop 1: order of samples is shuffled with seed 0 in the job and as they stand in this"),
        ({"accumulate": 2}, "loop 1: accumulate is 1 in the job and 2 in this worker's script"),
        ({"steps": 2}, "loop 1: number of epochs is 1 in the job and as many as the steps take in this worker's scr"),
        ({"held_out": 20}, "evaluation 1: number of samples is 16 in the job and 20 in this worker's script"),
        ({"later_batch": 2}, "loop 2: batch size is 4 in the job and 2 in this worker's script"),
        ({"epochs": 4}, "loop 2: number of epochs is 3 in the job and 4 in this worker's script"),
        ({"shift": 1.0}, "loop 1: sample 0 of the data is one with hash "),
    ],
)
def test_a_newcomer_with_other_terms_ends_alone_and_nobody_regroups_for_it(other: dict[str, Any], words: str) -> None:
    joining = Joining(**other)
    assert set(joining.run()) == {0, 1}
    text = str(joining.crew.turned_away[2])
    assert text.startswith(words)
    assert text.endswith(DATA_ADVICE if {"samples", "held_out", "shift"} & set(other) else ADVICE)
    assert joining.hub.number == 1, "no other generation was formed"
    assert not [event for event in joining.hub.events if isinstance(event, StepVoided)]


def test_a_newcomer_with_the_same_terms_goes_through_what_is_over_before_it_is_let_in() -> None:
    """Means and evaluations of loops that are over are handed out to it while it is in no generation."""
    joining = Joining(learning_rate=0.02)  # which it takes with the state
    assert set(joining.run()) == {0, 1, 2}
    assert joining.hub.number == 2
    (copied,) = (event for event in joining.hub.events if isinstance(event, StateCopied))
    assert copied.worker == 2


def test_a_newcomer_whose_script_ends_too_early_ends_alone() -> None:
    joining = Joining()
    train = joining.crew._train

    def short(run: shoal.Run) -> Any:
        if run._session.peers.worker != 2:
            return train(run)
        terms = TERMS
        model = run.model(Uses(terms))
        run.optimizer(torch.optim.SGD([model.uses], lr=1.0))
        training = torch.optim.AdamW(model.layer.parameters(), lr=0.01, weight_decay=0.01)
        run.optimizer(training)
        run.keep(schedule=torch.optim.lr_scheduler.StepLR(training, 1))
        for _ in run.batches(data(SAMPLES), 4):
            raise AssertionError("that loop is over")
        return None

    joining.crew._train = short
    assert set(joining.run()) == {0, 1}
    text = str(joining.crew.turned_away[2])
    assert text.startswith("the script came to its end after 5 calls, and in the job mean 1 comes next")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"epochs": 2}, "loop 2: number of epochs is 3 on worker 0 and 2 on worker 1"),
        ({"steps": 2}, "loop 1: number of epochs is 1 on worker 0 and as many as the steps take on worker 1"),
        (
            {"shuffle": False},
            "loop 1: order of samples is shuffled with seed 0 on worker 0 and as they stand on worker 1",
        ),
        ({"weight decay": 0.5}, "optimizer 2: weight_decay of group 1 is 0.01 on worker 0 and 0.5 on worker 1"),
        ({"clip": 2.0}, "optimizer 2: clip_norm is None on worker 0 and 2.0 on worker 1"),
        ({"dropout": 0.1}, "model 1: module 'drop' is Dropout(p=0.5, inplace=False) on worker 0 and Dropout(p=0.1"),
    ],
)
def test_first_workers_with_other_terms_end_the_job(other: dict[str, Any], words: str) -> None:
    train = script(lambda worker: TERMS | (other if worker == 1 else {}), lambda _: None)
    with pytest.raises(WorkersDisagree) as raised:
        train_in_threads(2, train)
    assert str(raised.value).startswith(words)
    assert "start every worker with the same script and arguments" in str(raised.value)


def test_what_schedules_change_and_machines_choose_is_no_term() -> None:
    def terms(worker: int) -> dict[str, Any]:
        return TERMS | {"learning rate": 0.01 * (1 + worker), "optimizer": torch.optim.AdamW, "epochs": 1}

    def train(run: shoal.Run) -> None:
        model = run.model(nn.Linear(4, 2))
        worker = run._session.peers.worker
        settings = {"foreach": bool(worker), "lr": terms(worker)["learning rate"]}
        run.optimizer(torch.optim.SGD(model.parameters(), **settings))
        for index, x in run.batches(data(8), 2):
            assert len(index) == len(x)  # without an update, since the rates differ

    train_in_threads(2, train)
