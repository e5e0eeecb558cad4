"""`run.stop` in the code between two epochs: no worker begins another epoch, whoever dies or comes meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shoal
from shoal.checkpoint.published.catalogue import load_manifest, published
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.errors import UsageError
from shoal.events import StopAgreed
from shoal.training import texts
from shoal.training.script.past import Past
from shoal.training.script.script_place import ScriptPlace
from support.training import Crew, Hub, Killed, train_in_threads
from support.uses import numbered

EPOCHS, STEPS = 4, 3  # steps per epoch, with two or three workers


class Script:
    """Stops after the second epoch, as all workers or only the last one ask. Returns what this run of it has seen."""

    def __init__(self, *, stops_after: int | None = 1, all_ask: bool = False, raises: bool = False) -> None:
        self.stops_after = stops_after
        self.all_ask = all_ask
        self.raises = raises
        self.workers = 3

    def __call__(self, run: shoal.Run) -> dict[str, Any]:
        model = run.model(nn.Linear(4, 1, bias=False))
        with torch.no_grad():  # threads share torch's generator
            model.weight.fill_(0.5)
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        behind, scores = [], []

        def score(_: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return model(x).mean()

        samples = numbered(STEPS * self.workers * 2)
        for epoch in run.epochs(EPOCHS):
            for _, x in epoch.batches(samples, batch_size=2):
                F.mse_loss(model(x), torch.ones(len(x), 1)).backward()
                optimizer.step()
                optimizer.zero_grad()
            behind.append(epoch.number)
            scores.append(run.evaluate(score, samples, batch_size=4)["score"])
            if epoch.number == self.stops_after and (self.all_ask or run.rank == run.world_size - 1):
                run.stop("good enough")
        if self.raises:
            raise ValueError("behind all epochs")
        last = run.evaluate(score, samples, batch_size=4)["score"]
        return {"behind": behind, "scores": scores, "last": last, "stopped": run.stopped, "step": run.step}


def hub_of(size: int, folder: Path, *, resumed: bool = False) -> Hub:
    store = LocalStore(folder)
    return Hub(size, publisher=StorePublisher(store, keep=3), store=store, is_resumed=resumed)


def assert_stopped(results: dict[int, dict[str, Any]]) -> None:
    for worker, result in results.items():
        assert result["behind"] == [0, 1], worker
        assert (result["stopped"], result["step"]) == ("good enough", 2 * STEPS), worker
    assert len({(*result["scores"], result["last"]) for result in results.values()}) == 1


@pytest.mark.parametrize("size", [1, 3])
def test_no_further_epoch_begins_on_any_worker(size: int) -> None:
    script, hub = Script(), Hub(size)
    script.workers = size
    assert_stopped(dict(enumerate(train_in_threads(size, script, hub=hub))))
    assert [event.step for event in hub.events if isinstance(event, StopAgreed)] == [2 * STEPS]


def test_a_second_round_of_epochs_does_not_begin_either() -> None:
    def train(run: shoal.Run) -> list[int]:
        first = [epoch.number for epoch in run.epochs(1) for _ in epoch.batches(numbered(4), batch_size=2)]
        if run.is_first:
            run.stop("enough")
        return first + [epoch.number for epoch in run.epochs(3)]

    assert train_in_threads(2, train) == [[0], [0]]


def behind_the_second_epoch(worker: int) -> tuple[int, int]:
    """Numbers of a worker's first and last all-reduce after the last step, in a job without faults."""
    hub = Hub(3)
    train_in_threads(3, Script(), hub=hub)
    labels = hub.labels[worker]
    last_step = max(number for number, label in enumerate(labels) if label.startswith(f"step {2 * STEPS - 1}, "))
    return last_step + 2, len(labels)


def dies_at(crew: Crew, victim: int, number: int) -> None:
    """The victim dies in its all-reduce of that number, and another worker comes."""
    count, lock = Counter[int](), threading.Lock()

    def dies(worker: int, _label: str) -> bool:
        with lock:
            count[worker] += 1
            if worker != victim or count[worker] != number:
                return False
        crew.start(3)
        return True

    crew.hub.kill = dies


@pytest.mark.parametrize(("victim", "all_ask"), [(0, False), (2, True)], ids=["one asks", "all ask"])
def test_a_worker_dies_in_any_meeting_around_the_stop_and_another_comes(victim: int, all_ask: bool) -> None:
    """Also where some have heard of the stop, and others have not: all that are left run the same epochs."""
    first, last = behind_the_second_epoch(victim)
    assert last - first >= 4
    for number in range(first, last + 1):
        crew = Crew(Hub(3), Script(all_ask=all_ask))
        dies_at(crew, victim, number)
        for worker in range(3):
            crew.start(worker)
        results = crew.wait()
        assert not crew.turned_away, number
        assert set(results) >= {0, 1, 2} - {victim}, number
        assert_stopped(results)


@pytest.mark.parametrize("place", ["before the stop", "after it"])
def test_a_newcomer_that_comes_behind_the_last_epoch_begins_no_other(place: str) -> None:
    """It goes through what the others have passed, the meeting in which they agreed on the stop too."""
    hub, script = Hub(2), Script()
    script.workers = 2

    def train(run: shoal.Run) -> dict[str, Any]:
        worker, evaluated = run._session.peers.worker, []
        evaluate = run.evaluate

        def watched(*arguments: Any, **options: Any) -> dict[str, float]:
            evaluated.append(None)
            if worker == 0 and len(evaluated) == (2 if place == "before the stop" else 3):
                crew.start(2)
                while not hub.is_wished:
                    pass
                raise Killed
            return evaluate(*arguments, **options)

        run.evaluate = watched  # type: ignore[method-assign]  of this object alone
        return script(run)

    crew = Crew(hub, train)
    for worker in range(2):
        crew.start(worker)
    results = crew.wait()
    assert not crew.turned_away
    assert set(results) == {1, 2}
    assert_stopped(results)


def test_the_state_of_the_stop_is_saved_whatever_the_script_does_then(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="behind all epochs"):
        train_in_threads(2, Script(raises=True), hub=hub_of(2, tmp_path), checkpoint_every="end")
    store = LocalStore(tmp_path)
    (listed,) = published(store)
    about = load_manifest(store, listed.name).about
    assert about.reason == "the job stops: good enough"


@pytest.mark.parametrize("stops_after", [None, 1, 2])
def test_a_resumed_job_runs_the_code_behind_the_epoch_again_and_may_go_on(
    stops_after: int | None, tmp_path: Path
) -> None:
    hub = hub_of(3, tmp_path)
    before = train_in_threads(3, Script(), hub=hub, checkpoint_every="end")[0]
    later = hub_of(3, tmp_path, resumed=True)
    later.number = hub.number
    epochs = EPOCHS if stops_after is None else stops_after + 1
    for result in train_in_threads(3, Script(stops_after=stops_after), hub=later, checkpoint_every="end"):
        assert result["behind"] == list(range(epochs))
        assert result["step"] == epochs * STEPS
        assert result["scores"][:2] == pytest.approx(before["scores"])
        assert (result["stopped"] is None) is (stops_after is None)


def test_epochs_inside_a_loop_over_batches_are_refused() -> None:
    def train(run: shoal.Run) -> None:
        for _ in run.batches(numbered(4), batch_size=2):
            for _ in run.epochs(2):
                pass

    with pytest.raises(UsageError, match=texts.LOOP_IN_LOOP.partition(";")[0]):
        train_in_threads(1, train)


@pytest.mark.parametrize(("points", "stop"), [(4, None), (5, "enough"), (9, "enough")])
def test_what_the_others_have_agreed_on_is_known_from_that_meeting_on(points: int, stop: str | None) -> None:
    place = ScriptPlace()
    place.go_through(Past(state={}, loop=1, first_step=0, results=(), points=9, ended=(5, "enough")))
    for _ in range(points):
        place.pass_meeting()
    assert place.past_stop == stop
