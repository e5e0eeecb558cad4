"""Workers that were given different data are told so where a loop or an evaluation starts, unless that is meant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import shoal
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.data import texts
from shoal.errors import UsageError
from shoal.events import ScriptDoubtful
from shoal.training.mistakes import compared_data
from support.training import Hub, train_in_threads

WHOLE = TensorDataset(torch.arange(24.0).reshape(24, 1))


class Killed(BaseException):
    """Ends a worker in the middle of its script."""


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_data, "PAUSE", 0.0)


def training_on(data: Callable[[int], Any], **options: Any) -> Callable[[shoal.Run], int]:
    """A script that counts its samples. `data` gets the worker's number."""

    def train(run: shoal.Run) -> int:
        model = run.model(nn.Linear(1, 1))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        samples = 0
        for (x,) in run.batches(data(run.rank), 2, **options):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            samples += len(x)
        return samples

    return train


class Lines(IterableDataset[tuple[torch.Tensor]]):
    def __init__(self, start: int, step: int) -> None:
        self.numbers = range(start, 24, step)

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        return ((torch.tensor([float(number)]),) for number in self.numbers)


@pytest.mark.parametrize(
    "part",
    [
        lambda rank: Subset(WHOLE, range(rank, 24, 2)),
        lambda rank: TensorDataset(WHOLE.tensors[0].chunk(2)[rank]),
        lambda rank: [(number,) for number in range(rank, 24, 2)],
        lambda rank: Lines(rank, 2),
    ],
    ids=["subset", "chunk", "list", "stream"],
)
def test_data_split_by_rank_end_the_job(part: Callable[[int], Any]) -> None:
    with pytest.raises(UsageError) as raised:
        train_in_threads(2, training_on(part))
    assert str(raised.value) == texts.sample_differs("loop 1", 0, (0, 1), "run.batches")


def test_data_of_their_own_are_dealt_out_by_position() -> None:
    assert train_in_threads(2, training_on(lambda rank: Subset(WHOLE, range(rank, 24, 2)), own_data=True)) == [6, 6]


def test_data_of_their_own_must_have_one_length() -> None:
    with pytest.raises(UsageError) as raised:
        train_in_threads(2, training_on(lambda rank: Subset(WHOLE, range(10 + rank)), own_data=True))
    assert str(raised.value) == texts.lengths_differ("loop 1", (10, 11), (0, 1))


class Unsteady(Dataset[tuple[torch.Tensor]]):
    """Samples count how often they were read, and start from another number on each worker."""

    def __init__(self, rank: int) -> None:
        self.reads = itertools.count(100 * rank)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.tensor([float(next(self.reads) // 9)]),)  # the same for a while, as the time of day in seconds


def test_samples_that_change_with_time_are_left_out() -> None:
    assert train_in_threads(2, training_on(Unsteady)) == [12, 12]


def test_an_iterator_that_differs_gives_a_warning() -> None:
    hub = Hub(2)
    assert train_in_threads(2, training_on(lambda rank: iter(Lines(rank, 2))), hub=hub) == [6, 6]
    (doubt,) = (event for event in hub.events if isinstance(event, ScriptDoubtful))
    assert doubt.text == texts.stream_may_differ("loop 1", 0, (0, 1), "run.batches")


@pytest.mark.parametrize("in_loop", [False, True])
def test_an_evaluation_compares_its_data_too(in_loop: bool) -> None:
    def score(run: shoal.Run, data: Any, **options: Any) -> dict[str, float]:
        return run.evaluate(lambda x: x.mean(), data, 2, **options)

    def train(run: shoal.Run) -> None:
        run.model(nn.Linear(1, 1))
        mine = Subset(WHOLE, range(run.rank, 24, 2))
        for _ in run.batches(WHOLE, 2, steps=2):
            assert score(run, WHOLE)["score"] == 11.5
            if in_loop:
                score(run, mine)
        score(run, mine, own_data=True)
        score(run, mine)

    with pytest.raises(UsageError) as raised:
        train_in_threads(2, train)
    step = 0 if in_loop else 2
    assert str(raised.value) == texts.sample_differs(f"run.evaluate at step {step}", 0, (0, 1), "run.evaluate")


def test_an_evaluation_of_unequal_parts_is_refused() -> None:
    def train(run: shoal.Run) -> None:
        run.model(nn.Linear(1, 1))
        run.evaluate(lambda x: x.mean(), Subset(WHOLE, range(16 + run.rank)), 2)

    with pytest.raises(UsageError) as raised:
        train_in_threads(2, train)
    assert str(raised.value) == texts.lengths_differ("run.evaluate at step 0", (16, 17), (0, 1))


# A resumed job


@pytest.mark.parametrize(("saved", "warned"), [(4, True), (6, False)], ids=["inside an epoch", "between epochs"])
def test_a_job_that_goes_on_inside_an_epoch_with_other_samples_is_warned(
    saved: int, warned: bool, tmp_path: Path
) -> None:
    shift = 0.0

    def train(run: shoal.Run) -> None:
        model = run.model(nn.Linear(1, 1))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        for (x,) in run.batches(TensorDataset(WHOLE.tensors[0] + shift), 2, epochs=2):
            run._session.saver.wait()
            if run.step == saved + 2 and not shift:
                raise Killed
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    store = LocalStore(tmp_path)

    def hub(*, is_resumed: bool) -> Hub:
        made = Hub(2, publisher=StorePublisher(store, keep=100), store=store, is_resumed=is_resumed)
        made.number = 10 if is_resumed else 0  # generations go on counting
        return made

    with pytest.raises(Killed):
        train_in_threads(2, train, hub=hub(is_resumed=False), checkpoint_every=str(saved))
    shift = 1.0
    resumed = hub(is_resumed=True)
    train_in_threads(2, train, hub=resumed)
    doubts = [event.text for event in resumed.events if isinstance(event, ScriptDoubtful)]
    assert doubts == ([texts.sample_changed("loop 1", 0, f"step-{saved:08}-g1")] if warned else [])
