"""Workers that die, come, are expelled and hand over, at every point of a script: each sample still counts once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.checkpoint.published.catalogue import marks
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.events import BatchChosen, ReplicaDiffered, Resumed, StateCopied, StepsApplied, StepVoided
from support.training import Crew, Hub, Killed
from support.uses import Uses, numbered

SAMPLES = 61
EPOCHS = 3


def script(between: Callable[[shoal.Run], None] = lambda _: None) -> Callable[[shoal.Run], dict[str, Any]]:
    """Nested loops with a mean and an evaluation between them, a schedule, two optimizers."""

    def train(run: shoal.Run) -> dict[str, Any]:
        model = run.model(Uses(SAMPLES))
        counting = run.optimizer(torch.optim.SGD([model.uses], lr=1.0))
        training = run.optimizer(torch.optim.AdamW([model.weight], lr=0.01))
        schedule = torch.optim.lr_scheduler.StepLR(training, 1, gamma=0.5)
        run.keep(schedule=schedule)
        means = [run.mean(2.0)]
        for epoch in run.epochs(EPOCHS):
            for index, x in epoch.batches(numbered(SAMPLES), batch_size=3):
                between(run)
                model(index, x).backward()
                # The gradient of `uses` is -1 over the step's samples for each use: with that many, SGD adds one.
                model.uses.grad.mul_(run._session.iteration.step_samples)  # type: ignore[union-attr]  after backward it has one
                counting.step()
                training.step()
                counting.zero_grad()
                training.zero_grad()
            schedule.step()
            means.append(run.evaluate(lambda _, x: x.sum(), numbered(SAMPLES), batch_size=8)["score"])
        return {
            "uses": model.uses.detach().clone(),
            "weight": model.weight.detach().clone(),
            "rate": schedule.get_last_lr(),
            "means": means,
            "seen": len(means),
        }

    return train


def assert_exact(results: dict[int, Any]) -> None:
    assert results
    for result in results.values():
        assert (result["uses"] - EPOCHS).abs().max().item() < 1e-4, result["uses"]
        assert result["rate"] == [0.01 * 0.5**EPOCHS]
        assert result["means"][0] == pytest.approx(2.0)
        assert len(result["means"]) == EPOCHS + 1
    one = next(iter(results.values()))
    for other in results.values():
        assert torch.equal(one["weight"], other["weight"])
        assert torch.equal(one["uses"], other["uses"])


def crew_of(size: int, hub: Hub | None = None, train: Callable[[shoal.Run], Any] | None = None, **options: Any) -> Crew:
    crew = Crew(hub or Hub(size), train or script(), **options)
    for worker in range(size):
        crew.start(worker)
    return crew


def dies_at(number: int, worker: int, then: Callable[[], None] = lambda: None) -> Callable[[int, str], bool]:
    """In its all-reduce of that number."""
    count = Counter[int]()
    lock = threading.Lock()

    def dies(who: int, _label: str) -> bool:
        with lock:
            count[who] += 1
            if who != worker or count[who] != number:
                return False
        then()
        return True

    return dies


def calls_without_faults(size: int) -> int:
    hub = Hub(size)
    crew_of(size, hub).wait()
    return len(hub.labels[1])


@pytest.mark.long
def test_a_worker_dies_in_any_exchange_and_another_comes() -> None:
    """Every meeting and every exchange of gradients, before it starts, at start-up, between epochs and at the end."""
    calls = calls_without_faults(3)
    assert calls > 50
    for number in range(1, calls + 1, 2):
        hub = Hub(3)
        crew = Crew(hub, script())
        hub.kill = dies_at(number, 1, then=lambda crew=crew: crew.start(3))  # type: ignore[misc]  mypy cannot type the default
        for worker in range(3):
            crew.start(worker)
        results = crew.wait()
        assert set(results) >= {0, 2}, number
        assert_exact(results)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 12))])
def test_two_die_and_two_come_at_random(seed: int) -> None:
    draw = random.Random(seed)
    hub = Hub(4)
    crew = Crew(hub, script())
    first, second = draw.sample(range(4), 2)
    at = {first: draw.randrange(1, 60), second: draw.randrange(1, 60)}
    count = Counter[int]()

    def dies(worker: int, _label: str) -> bool:
        count[worker] += 1
        if at.get(worker) != count[worker]:
            return False
        crew.start(4 if worker == first else 5)
        return True

    hub.kill = dies
    for worker in range(4):
        crew.start(worker)
    results = crew.wait()
    assert set(results) >= set(range(4)) - {first, second}
    assert_exact(results)


def test_one_that_dies_in_forward_leaves_the_others_their_step() -> None:
    def between(run: shoal.Run) -> None:
        if run._session.peers.worker == 2 and run.step == 4:
            raise Killed

    hub = Hub(3)
    assert_exact(crew_of(3, hub, script(between)).wait())
    voided = [event for event in hub.events if isinstance(event, StepVoided)]
    assert {(event.worker, event.generation, event.step, event.samples) for event in voided} == {
        (0, 1, 4, 9),
        (1, 1, 4, 9),
    }
    rows = [row for event in hub.events if isinstance(event, StepsApplied) for row in event.rows]
    assert {row.generation for row in rows if row.step <= 4} == {1}
    assert {row.generation for row in rows if row.step >= 5} == {2}, "what was done again and all after it"
    (chosen,) = [event for event in hub.events if isinstance(event, BatchChosen)]
    assert (chosen.workers, chosen.global_batch) == (2, 9)


def test_all_but_one_die_and_the_last_one_goes_on() -> None:
    def between(run: shoal.Run) -> None:
        if run._session.peers.worker and run.step == 3 + run._session.peers.worker:
            raise Killed

    assert_exact(crew_of(4, None, script(between)).wait())


def test_newcomers_are_let_in_at_the_end_of_a_step_and_nothing_is_redone() -> None:
    started = threading.Event()

    def between(run: shoal.Run) -> None:
        if run.step == 5 and run._session.peers.worker == 0 and not started.is_set():
            started.set()
            crew.start(1)
            while not hub.is_wished:
                pass

    hub = Hub(1)
    crew = Crew(hub, script(between))
    crew.start(0)
    results = crew.wait()
    assert set(results) == {0, 1}
    assert_exact(results)
    assert not [event for event in hub.events if isinstance(event, StepVoided)]
    (copied,) = [event for event in hub.events if isinstance(event, StateCopied)]
    assert (copied.worker, copied.source) == (1, 0)


@pytest.mark.parametrize("at", [2, 9, 16])
def test_an_expelled_worker_comes_back_as_a_newcomer(at: int) -> None:
    once = threading.Event()

    def between(run: shoal.Run) -> None:
        if run.step == at and run._session.peers.worker == 1 and not once.is_set():
            once.set()
            hub.expel(1)

    hub = Hub(3)
    results = crew_of(3, hub, script(between)).wait()
    assert set(results) == {0, 1, 2}
    assert_exact(results)


def test_a_worker_hands_over_at_the_end_of_its_step() -> None:
    def between(run: shoal.Run) -> None:
        if run.step == 6 and run._session.peers.worker == 1:
            hub.leaving[1] = "its machine is taken away"

    hub = Hub(3)
    results = crew_of(3, hub, script(between)).wait()
    assert set(results) == {0, 2}
    assert_exact(results)
    assert not [event for event in hub.events if isinstance(event, StepVoided)]


def test_all_workers_hand_over_and_others_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    def between(run: shoal.Run) -> None:
        worker = run._session.peers.worker
        if run.step == 6 and worker < 2:
            hub.leaving |= {0: "told to go", 1: "told to go"}

    store = LocalStore(tmp_path)
    hub = Hub(2, publisher=StorePublisher(store, keep=3), store=store)
    crew_of(2, hub, script(between)).wait()
    told = {(event.worker, row.step) for event in hub.events if isinstance(event, StepsApplied) for row in event.rows}
    assert {(0, 7), (1, 7)} <= told, "nobody is left who could tell of the last step"
    later = Hub(2, publisher=StorePublisher(store, keep=3), store=store, is_resumed=True)
    later.number = hub.number
    assert_exact(crew_of(2, later, resume="an earlier run").wait())
    (resumed,) = [event for event in later.events if isinstance(event, Resumed)]
    assert resumed.step == 7


def corrupts(worker: int, step: int) -> Callable[[shoal.Run], None]:
    def between(run: shoal.Run) -> None:
        if run._session.peers.worker == worker and run.step == step and run._session.peers.generation.number == 1:
            with torch.no_grad():
                run._session.watched.models["model 1"].weight[2] += 1e-3

    return between


def test_a_corrupted_replica_is_named_and_mended() -> None:
    hub = Hub(3)
    results = crew_of(3, hub, script(corrupts(1, 4)), digest_every=2).wait()
    assert_exact(results)
    (told,) = [event for event in hub.events if isinstance(event, ReplicaDiffered)]
    assert told.worker == 1 and "given theirs" in told.reason


def test_without_a_majority_the_checkpoint_is_restored(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    hub = Hub(2, publisher=StorePublisher(store, keep=3), store=store)
    wait = corrupts(1, 8)

    def between(run: shoal.Run) -> None:
        run._session.saver.wait()
        wait(run)

    results = crew_of(2, hub, script(between), digest_every=2, checkpoint_every="3").wait()
    assert_exact(results)
    (told,) = [event for event in hub.events if isinstance(event, ReplicaDiffered)]
    assert told.worker is None
    (resumed,) = [event for event in hub.events if isinstance(event, Resumed)]
    assert resumed.step == 6


def test_a_newcomer_knows_which_checkpoints_to_trust(tmp_path: Path) -> None:
    """It has seen no comparison itself: what the others have seen counts, or the job would begin again from nothing."""
    store = LocalStore(tmp_path)
    hub = Hub(1, publisher=StorePublisher(store, keep=9), store=store)
    corrupted: list[int] = []

    def between(run: shoal.Run) -> None:
        run._session.saver.wait()
        worker = run._session.peers.worker
        if worker == 0 and run.step == 6 and not corrupted:
            crew.start(1)
            while not hub.is_wished:
                time.sleep(0.01)
        if worker == 1 and not corrupted:
            corrupted.append(run.step)
            with torch.no_grad():
                run._session.watched.models["model 1"].weight[2] += 1e-3

    crew = Crew(hub, script(between), digest_every=5, checkpoint_every="3")
    crew.start(0)
    assert_exact(crew.wait())
    (told,) = [event for event in hub.events if isinstance(event, ReplicaDiffered)]
    assert told.worker is None and told.step == 10 and 0 < corrupted[0] < 10
    (resumed,) = [event for event in hub.events if isinstance(event, Resumed)]
    assert resumed.step == 3  # compared before step 5; the next one is of step 6


def test_what_all_have_read_from_a_checkpoint_is_trusted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)

    def leaves(run: shoal.Run) -> None:
        if run.step == 6:
            hub.leaving |= {0: "told to go", 1: "told to go"}

    hub = Hub(2, publisher=StorePublisher(store, keep=9), store=store)
    crew_of(2, hub, script(leaves)).wait()
    later = Hub(2, publisher=StorePublisher(store, keep=9), store=store, is_resumed=True)
    later.number = hub.number

    def corrupts_first(run: shoal.Run) -> None:
        if run._session.peers.worker == 1 and run.step == 8 and run._session.peers.generation.number == hub.number + 1:
            with torch.no_grad():
                run._session.watched.models["model 1"].weight[2] += 1e-3

    assert_exact(crew_of(2, later, script(corrupts_first), digest_every=10, resume="an earlier run").wait())
    assert [event.step for event in later.events if isinstance(event, Resumed)] == [7, 7]


@pytest.mark.parametrize(
    ("resize", "batch", "factor"),
    [("global-batch", 12, 1.0), ("worker-batch", 9, 1.0), ("worker-batch-and-lr", 9, 0.75)],
)
def test_batch_and_learning_rate_follow_the_option(resize: str, batch: int, factor: float) -> None:
    rates: list[float] = []

    def train(run: shoal.Run) -> float:
        model = run.model(nn.Linear(4, 1, bias=False))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
        plain = optimizer.param_groups[0]
        for _, x in run.batches(numbered(SAMPLES), batch_size=3):
            if run._session.peers.worker == 3 and run.step == 1:
                raise Killed
            before = model.weight.detach().clone()
            model(x).mean().backward()
            gradient = model.weight.grad.clone()  # type: ignore[union-attr]  after backward it has one
            optimizer.step()
            if run.applied and run.is_first:
                rates.append(((before - model.weight.detach()) / gradient).mean().item())
            assert plain["lr"] == 0.5
            optimizer.zero_grad()
        return 0.0

    hub = Hub(4)
    crew_of(4, hub, train, resize=resize).wait()
    (chosen,) = [event for event in hub.events if isinstance(event, BatchChosen)]
    assert (chosen.global_batch, chosen.lr_factor) == (batch, factor)
    assert rates[0] == pytest.approx(0.5, rel=1e-3)
    assert rates[-1] == pytest.approx(0.5 * factor, rel=1e-3)


def test_a_newcomer_knows_which_checkpoint_was_the_last(tmp_path: Path) -> None:
    """Else it would wait alone for one of a step that the others have saved already."""

    def train(run: shoal.Run) -> int:
        model = run.model(Uses(SAMPLES))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for index, x in run.batches(numbered(SAMPLES), batch_size=3, epochs=2):
            run._session.saver.wait()
            if run.step == 4 and run._session.peers.worker == 0 and not started:
                started.append(1)
                crew.start(1)
                while not hub.is_wished:
                    pass
            if run.step == 5:
                run.stop("enough")
            model(index, x).backward()
            optimizer.step()
            optimizer.zero_grad()
        return run.step

    started: list[int] = []
    store = LocalStore(tmp_path)
    hub = Hub(1, publisher=StorePublisher(store, keep=9), store=store)
    crew = Crew(hub, train, checkpoint_every="1")
    crew.start(0)
    results = crew.wait()
    assert results[0] == results[1]


def test_a_save_that_was_asked_for_before_a_newcomer_came_is_made_by_all(tmp_path: Path) -> None:
    """In the last step of a loop, at whose end the newcomer is let in: it has not heard the script ask."""
    started: list[int] = []

    def train(run: shoal.Run) -> int:
        model = run.model(Uses(SAMPLES))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for index, x in run.batches(numbered(SAMPLES), batch_size=3, steps=6):
            if run.step == 5 and run._session.peers.worker == 0 and not started:
                started.append(1)
                crew.start(1)
                while not hub.is_wished:
                    pass
            model(index, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step == 5:
                run.save(mark="best")
        return run.step

    store = LocalStore(tmp_path)
    hub = Hub(1, publisher=StorePublisher(store, keep=9), store=store)
    crew = Crew(hub, train)
    crew.start(0)
    assert set(crew.wait().values()) == {6}
    assert list(marks(store)) == ["best"]


def test_a_save_in_a_loop_through_a_death_while_the_workers_agree_on_it(tmp_path: Path) -> None:
    """Some have begun it and others have not: all must agree on what is still asked for."""

    def train(run: shoal.Run) -> int:
        model = run.model(Uses(SAMPLES))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for index, x in run.batches(numbered(SAMPLES), batch_size=3, steps=8):
            model(index, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step in (2, 4):
                run.save(mark=f"at-{run.step}")
        return run.step

    for late in (False, True):
        store = LocalStore(tmp_path / str(late))
        hub = Hub(3, publisher=StorePublisher(store, keep=9), store=store)
        broken: list[str] = []

        def breaks(worker: int, label: str, broken: list[str] = broken) -> bool:
            is_it = worker == 1 and label == "saving after step 3" and not broken
            if is_it:
                broken.append(label)
            return is_it

        if late:
            hub.late = breaks
        else:
            hub.kill = breaks
        crew = crew_of(3, hub, train)
        assert set(crew.wait().values()) == {8}
        assert broken
        assert "at-4" in marks(store)
