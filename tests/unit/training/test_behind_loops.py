"""Workers that die in the script's own code behind a loop: what they should have done there is done by somebody."""

from __future__ import annotations

import threading
from collections import Counter
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
from shoal.events import Resumed, WentBack
from shoal.values import Generation
from shoal.wire.messages import Done
from support.training import Crew, Hub, Killed

SAMPLES, EPOCHS = 24, 3


class Script:
    """Nested loops; the first worker writes after each epoch and at the end, with an evaluation before that.

    `dies` is asked at each place in its own code that a worker comes to: "epoch 1", "before", "after".
    """

    def __init__(self, dies: Callable[[int, str], bool] = lambda _worker, _place: False) -> None:
        self.files: dict[str, tuple[float, int]] = {}  # by name: what was written, and by which rank
        self.runs = Counter[tuple[int, str]]()  # how often each worker was at each place
        self.lock = threading.Lock()
        self.steps = 0  # that were applied
        self.batch_size: Callable[[shoal.Run], int] = lambda _run: 2
        self._dies = dies

    def at(self, run: shoal.Run, place: str) -> None:
        worker = run._session.peers.worker
        with self.lock:
            self.runs[worker, place] += 1
        if self._dies(worker, place):
            raise Killed

    def write(self, run: shoal.Run, name: str, model: nn.Linear) -> None:
        if run.is_first:
            with self.lock:
                self.files[name] = (float(model.weight.detach().sum()), run.rank)

    def __call__(self, run: shoal.Run) -> dict[str, Any]:
        model = run.model(nn.Linear(4, 1, bias=False))
        uses = run.model(nn.Embedding(SAMPLES, 1))
        with torch.no_grad():  # threads share torch's generator
            model.weight.fill_(0.5)
            uses.weight.zero_()
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        counting = run.optimizer(torch.optim.SGD(uses.parameters(), lr=1.0))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        run.keep(schedule=schedule)
        for epoch in run.epochs(EPOCHS):
            for index, x in epoch.batches(data(), batch_size=self.batch_size(run)):
                (model(x).pow(2).mean() - uses(index).mean()).backward()
                uses.weight.grad.mul_(run._session.iteration.step_samples)  # type: ignore[union-attr]  it has one
                for each in (optimizer, counting):
                    each.step()
                    each.zero_grad()
            self.at(run, f"epoch {epoch.number}")
            schedule.step()
            self.write(run, f"epoch {epoch.number}", model)
        self.at(run, "before")
        score = run.evaluate(lambda _, x: model(x).mean(), data(), batch_size=4)["score"]
        self.at(run, "after")
        self.write(run, "result", model)
        self.steps = run.step
        return {"uses": uses.weight.detach().clone(), "rate": schedule.get_last_lr(), "score": score}


def data() -> TensorDataset:
    x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(torch.arange(SAMPLES), x)


def run_to_its_end(script: Script, hub: Hub | None = None, size: int = 3, **options: Any) -> dict[int, Any]:
    crew = Crew(hub or Hub(size), script, **options)
    for worker in range(size):
        crew.start(worker)
    return crew.wait()


def assert_exact(script: Script, results: dict[int, Any]) -> None:
    for result in results.values():
        assert (result["uses"] - EPOCHS).abs().max().item() < 1e-4, result["uses"]
        assert result["rate"] == [0.1 * 0.5**EPOCHS]
    assert set(script.files) == {f"epoch {number}" for number in range(EPOCHS)} | {"result"}
    assert {rank for _, rank in script.files.values()} == {0}


@pytest.mark.parametrize("place", ["epoch 0", "after"])
def test_a_script_that_goes_back_may_have_another_batch_size_then(place: str) -> None:
    """It divides a batch by the number of workers, which is another one when it runs again, the same one everywhere."""
    script = Script(lambda *there: there == (0, place))
    script.batch_size = lambda run: 12 // run.world_size
    results = run_to_its_end(script)
    assert set(results) == {1, 2}
    assert_exact(script, results)


@pytest.mark.parametrize("place", ["epoch 0", f"epoch {EPOCHS - 1}", "before", "after"])
@pytest.mark.parametrize("victim", [0, 2])
def test_what_a_worker_should_have_done_behind_a_loop_is_done_by_others(victim: int, place: str) -> None:
    """Steps are not redone, kept objects are as they would be, and files of earlier epochs stay as they were."""
    undisturbed = Script()
    run_to_its_end(undisturbed)
    script, hub = Script(lambda *there: there == (victim, place)), Hub(3)
    results = run_to_its_end(script, hub)
    assert set(results) == {0, 1, 2} - {victim}
    assert_exact(script, results)
    (went,) = [event for event in hub.events if isinstance(event, WentBack)]
    assert went.lost == (victim,)
    for name, (value, _) in script.files.items():
        # Fewer workers add up in another order, from the epoch after the loss on.
        assert value == pytest.approx(undisturbed.files[name][0], rel=1e-4), name


def test_one_after_the_other_may_be_lost_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    hub = Hub(4, store=store, publisher=StorePublisher(store, 3))
    wanted = {(0, "after"): 1, (1, "before"): 2, (2, "after"): 2}
    script = Script(lambda worker, place: script.runs[worker, place] == wanted.get((worker, place)))
    results = run_to_its_end(script, hub, size=4, checkpoint_every="end")
    assert set(results) == {3}
    assert_exact(script, results)
    assert len([event for event in hub.events if isinstance(event, WentBack)]) == 3


def test_a_worker_lost_in_a_meeting_behind_the_loop_has_done_what_came_before() -> None:
    """The others hold the meeting again, and run nothing twice."""
    script, hub = Script(), Hub(3)
    hub.kill = lambda worker, label: worker == 0 and "evaluation" in label
    results = run_to_its_end(script, hub)
    assert set(results) == {1, 2}
    assert_exact(script, results)
    assert set(script.runs.values()) == {1}
    assert not [event for event in hub.events if isinstance(event, WentBack)]


def test_a_worker_lost_when_it_waits_for_the_others_at_the_end_was_through() -> None:
    """Nothing of its script was left to run; only whoever has more to do behind `shoal.main` is missed."""
    for is_last_line in (True, False):
        script, hub = Script(), Hub(2)
        finish = hub.finish

        def dies(worker: int, notice: Any, finish: Any = finish) -> Any:
            if worker == 0:
                raise Killed
            return finish(worker, notice)

        hub.finish = dies  # type: ignore[method-assign]  it is one of ours
        crew = Crew(hub, script)
        crew.is_last_line = is_last_line
        for worker in range(2):
            crew.start(worker)
        results = crew.wait()
        assert set(results) == {1}
        assert_exact(script, results)
        assert script.runs[1, "after"] == (1 if is_last_line else 2)


@pytest.mark.parametrize("changing", [(0,), (0, 1), (0, 1, 2)], ids=["the lost one", "a survivor", "all"])
def test_code_that_changes_parameters_behind_the_loop_is_not_run_on_what_it_has_changed(
    changing: tuple[int, ...], tmp_path: Path
) -> None:
    """Whoever has not changed them yet has the state to go back to; where nobody has, the newest checkpoint does."""
    store = LocalStore(tmp_path)
    hub = Hub(3, store=store, publisher=StorePublisher(store, 3))
    doubled: dict[int, float] = {}

    class Doubling(Script):
        def __call__(self, run: shoal.Run) -> Any:
            result = super().__call__(run)
            worker = run._session.peers.worker
            model: Any = run._session.watched.models["model 1"]
            before = float(model.weight.detach().sum())
            if worker in changing:
                with torch.no_grad():
                    model.weight.mul_(2.0)
            self.at(run, "doubled")
            doubled[worker] = float(model.weight.detach().sum()) / before
            return {**result, "before": before}

    script = Doubling(lambda *there: there == (0, "doubled"))
    results = run_to_its_end(script, hub, checkpoint_every="4")
    assert set(results) == {1, 2}
    assert_exact(script, results)
    assert results[1]["before"] == results[2]["before"] == pytest.approx(script.files["result"][0])
    assert doubled == {worker: pytest.approx(2.0 if worker in changing else 1.0) for worker in (1, 2)}
    (went,) = [event for event in hub.events if isinstance(event, WentBack)]
    assert ("changed parameters on all" in went.reason) is (changing == (0, 1, 2))
    assert bool([event for event in hub.events if isinstance(event, Resumed)]) is (changing == (0, 1, 2))


def test_the_last_checkpoint_is_made_where_the_meeting_before_it_broke_for_one(tmp_path: Path) -> None:
    """The other has begun its part when it hears of it, and both make theirs again, in the new generation."""
    store, told = LocalStore(tmp_path), []

    def late(worker: int, label: str) -> bool:
        if worker != 1 or "end of the script" not in label or told:
            return False
        told.append(label)
        return True

    hub = Hub(2, late=late, store=store, publisher=StorePublisher(store, 3))
    script = Script()
    results = run_to_its_end(script, hub, size=2, checkpoint_every="end")
    assert set(results) == {0, 1}
    assert_exact(script, results)
    assert set(script.runs.values()) == {1}
    assert told
    assert [name for name, published in hub.settled.items() if published] == [f"step-{script.steps:08}-g2"]


def test_newcomers_have_a_part_in_what_is_run_again() -> None:
    """They come in where the others go back to, with the trained model, and are as much a part of it as anybody."""
    hub = Hub(2)

    def dies(worker: int, place: str) -> bool:
        if (worker, place) != (0, "after"):
            return False
        crew.start(2)
        while not hub.is_wished:
            pass
        return True

    script = Script(dies)
    crew = Crew(hub, script)
    for worker in range(2):
        crew.start(worker)
    results = crew.wait()
    assert set(results) == {1, 2}
    assert_exact(script, results)
    assert script.runs[2, "after"] == 1
    assert results[1]["score"] == results[2]["score"]


def test_a_newcomer_that_is_let_in_at_the_end_of_the_script_is_where_the_others_are(tmp_path: Path) -> None:
    """They have met for the last checkpoint, which is no call of the script that the newcomer could have made."""

    class Ending(Hub):
        def finish(self, worker: int, notice: Done) -> Generation | None:
            if worker == 0:
                crew.start(2)
                with self.condition:
                    assert self.condition.wait_for(lambda: set(self.waiting) == {1, 2}, timeout=60)
                raise Killed
            return super().finish(worker, notice)

    store = LocalStore(tmp_path)
    hub = Ending(2, store=store, publisher=StorePublisher(store, 3))
    script = Script()
    crew = Crew(hub, script)
    for worker in (0, 1):
        crew.start(worker)
    results = crew.wait()
    assert not crew.turned_away
    assert set(results) == {1, 2}
    assert_exact(script, results)
    assert script.runs[1, "after"] == 1


def test_a_newcomer_that_waits_while_the_others_go_back_goes_with_them() -> None:
    """It has passed loops on its own, as far as the others had told of theirs."""

    def dies(worker: int, there: str) -> bool:
        if (worker, there) != (0, "after"):
            return False
        crew.start(3)
        with hub.condition:
            assert hub.condition.wait_for(lambda: 3 in hub.waiting, timeout=60)
        return True

    hub, script = Hub(3), Script(dies)
    crew = Crew(hub, script)
    for worker in range(3):
        crew.start(worker)
    results = crew.wait()
    assert not crew.turned_away
    assert set(results) == {1, 2, 3}
    assert_exact(script, results)
    assert script.steps == len(data()) * EPOCHS // 6


def test_a_newcomer_whose_script_comes_to_its_end_on_its_own_waits_there(tmp_path: Path) -> None:
    """The last call of the script needs nobody else, and the others have made it."""

    def train(run: shoal.Run) -> float:
        model = run.model(nn.Linear(4, 1))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _, x in run.batches(data(), batch_size=2):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        run.keep(rate=torch.optim.lr_scheduler.StepLR(optimizer, 1))
        if run._session.peers.worker == 0:
            crew.start(2)
            with hub.condition:
                assert hub.condition.wait_for(lambda: 2 in hub.waiting, timeout=60)
            raise Killed
        return float(model.weight.detach().sum())

    store = LocalStore(tmp_path)
    hub = Hub(2, store=store, publisher=StorePublisher(store, 3))
    crew = Crew(hub, train)
    for worker in (0, 1):
        crew.start(worker)
    results = crew.wait()
    assert set(results) == {1, 2}
    assert results[1] == results[2]
