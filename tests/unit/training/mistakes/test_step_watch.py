"""Scripts over live training code: which steps end them, which are worth a warning, and which are nobody's business."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.errors import UsageError
from shoal.events import ScriptDoubtful
from shoal.training import texts
from shoal.training.mistakes.step_verdicts import FIRST_STEPS
from support.training import Hub, train_in_threads

START = nn.Linear(4, 2)


def data() -> TensorDataset:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def warnings_of(size: int, train: Callable[[shoal.Run], object]) -> set[str]:
    hub = Hub(size)
    train_in_threads(size, train, hub=hub)
    return {event.text for event in hub.events if isinstance(event, ScriptDoubtful)}


def own_loader(run: shoal.Run) -> None:
    model = run.model(copy.deepcopy(START))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in DataLoader(data(), batch_size=8):
        fit(model, optimizer, batch)


def without_run(_run: shoal.Run) -> None:
    model = copy.deepcopy(START)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1), data()[:4])


def optimizer_kept_back(run: shoal.Run) -> None:
    model = run.model(copy.deepcopy(START))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in run.batches(data(), batch_size=8):
        fit(model, optimizer, batch)


def model_kept_back(run: shoal.Run) -> None:
    model = copy.deepcopy(START)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in run.batches(data(), batch_size=8):
        fit(model, optimizer, batch)


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (own_loader, texts.step_outside_loop("SGD", 2)),
        (without_run, texts.step_without_run("SGD", 2)),
        (optimizer_kept_back, texts.optimizer_unknown("SGD", "model 1")),
        (model_kept_back, texts.model_unknown("SGD", 2)),
    ],
)
def test_workers_that_would_train_each_for_itself_are_told(train: Callable[[shoal.Run], None], text: str) -> None:
    with pytest.raises(UsageError) as raised:
        train_in_threads(2, train)
    assert str(raised.value) == text


def test_alone_a_loop_over_the_scripts_own_loader_is_worth_a_warning() -> None:
    assert warnings_of(1, own_loader) == {texts.trained_outside(4)}
    assert warnings_of(1, model_kept_back) == {texts.model_forgotten("SGD", [2, 4])}
    assert warnings_of(1, without_run) == set()


def test_a_script_whose_workers_never_meet_is_told_unless_it_shares_the_work_out() -> None:
    with pytest.raises(UsageError) as raised:
        train_in_threads(2, lambda _run: None)
    assert str(raised.value) == texts.never_met(2)
    assert sorted(train_in_threads(2, lambda run: run.rank)) == [0, 1]
    assert warnings_of(1, lambda _run: None) == set()


def test_a_model_that_nobody_optimizes_is_named_once() -> None:
    def train(run: shoal.Run) -> None:
        body, head = run.model(copy.deepcopy(START)), run.model(nn.Linear(2, 2))
        optimizer = run.optimizer(torch.optim.SGD(body.parameters(), lr=0.1))
        for _ in range(2):
            for x, y in run.batches(data(), batch_size=8):
                F.cross_entropy(head(body(x)), y).backward()
                optimizer.step()
                body.zero_grad()
                head.zero_grad()

    assert warnings_of(2, train) == {texts.not_optimized("model 2", "Linear")}


def test_inner_loops_and_optimizers_within_optimizers_are_right() -> None:
    class Twice(torch.optim.SGD):
        """Steps another optimizer of its own, as Lookahead does."""

        def __init__(self, parameters: list[nn.Parameter]) -> None:
            super().__init__(parameters, lr=0.1)
            self.inner = torch.optim.SGD(parameters, lr=0.1)

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            self.inner.step()
            super().step()

    def train(run: shoal.Run) -> None:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(Twice(list(model.parameters())))
        reset = copy.deepcopy(START)
        reset_optimizer = torch.optim.Adam(reset.parameters())
        optimizer.step()  # no gradient, nothing to change
        for batch in run.batches(data(), batch_size=8):
            anew = copy.deepcopy(model)
            reset.load_state_dict(model.state_dict())
            fit(anew, torch.optim.SGD(anew.parameters(), lr=0.1), batch)
            fit(reset, reset_optimizer, batch)
            fit(reset, reset_optimizer, batch)
            fit(model, optimizer, batch)

    assert warnings_of(2, train) == set()


def second_stage(run: shoal.Run, steps: int) -> None:
    """A loop over `run.batches`, then another model in a loop of the script's own."""
    model, other = run.model(copy.deepcopy(START)), copy.deepcopy(START)
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in run.batches(data(), batch_size=8):
        fit(model, optimizer, batch)
    own = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(steps):
        fit(other, own, data()[:4])


def test_a_second_stage_that_each_worker_trains_for_itself_is_told_once() -> None:
    assert warnings_of(2, lambda run: second_stage(run, 2 * FIRST_STEPS)) == {
        texts.trained_apart("SGD", [2, 4], FIRST_STEPS)
    }
    assert warnings_of(2, lambda run: second_stage(run, FIRST_STEPS - 1)) == set()
    assert warnings_of(1, lambda run: second_stage(run, 2 * FIRST_STEPS)) == set()


def test_inner_loops_behind_a_loop_begin_anew_and_are_right() -> None:
    def train(run: shoal.Run) -> None:
        second_stage(run, 0)
        reset = copy.deepcopy(START)
        optimizer = torch.optim.SGD(reset.parameters(), lr=0.1)
        for _ in range(FIRST_STEPS):
            reset.load_state_dict(START.state_dict())
            fit(reset, optimizer, data()[:4])
            fit(reset, optimizer, data()[:4])

    assert warnings_of(2, train) == set()


def test_other_threads_are_left_alone_and_no_hook_outlives_the_script() -> None:
    def train(run: shoal.Run) -> None:
        model, own = run.model(copy.deepcopy(START)), copy.deepcopy(START)
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        beside = threading.Thread(target=fit, args=(own, torch.optim.SGD(own.parameters(), lr=0.1), data()[:4]))
        beside.start()
        beside.join()
        for batch in run.batches(data(), batch_size=8):
            fit(model, optimizer, batch)

    assert warnings_of(2, train) == set()
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks
