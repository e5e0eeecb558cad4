"""What a script sees of `Run`: means, evaluation, stopping, leaving loops, weights, logging, data loaders."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import shoal
from shoal.errors import DataError, UsageError, WorkersDisagree
from shoal.events import EpochEnded, Evaluated, LoopEnded, LoopStarted, StepsApplied, StopAgreed
from shoal.strategies import texts as strategy_texts
from shoal.training import texts
from support.training import Hub, train_in_threads

START = nn.Linear(5, 2).double()


def data(samples: int = 43) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :2].sin())


class Counter(nn.Module):
    """Parameter i counts how often sample i was used: with SGD at lr 1 and loss = -sum of the counts of a batch."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.count[indices]


@pytest.mark.parametrize(
    ("size", "samples", "batch", "accumulate"), [(1, 10, 3, 1), (3, 31, 4, 1), (4, 29, 3, 2), (7, 9, 2, 1)]
)
def test_every_sample_counts_once_per_epoch_in_the_final_parameters(
    size: int, samples: int, batch: int, accumulate: int
) -> None:
    indices = TensorDataset(torch.arange(samples))

    def train(run: shoal.Run) -> torch.Tensor:
        model = run.model(Counter(samples))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        for epoch in run.epochs(3):
            for (batch_of,) in epoch.batches(indices, batch_size=batch, accumulate=accumulate):
                loss = -model(batch_of).mean()
                loss.backward()
                iteration = run._session.iteration
                assert iteration is not None
                for group in optimizer.param_groups:
                    group["lr"] = float(iteration.step_samples)  # undoes the mean over the step's samples
                optimizer.step()
                optimizer.zero_grad()
        return model.count.detach().clone()

    for counts in train_in_threads(size, train):
        assert torch.allclose(counts, torch.full((samples,), 3.0, dtype=torch.float64))


def test_means_are_over_workers_and_the_same_everywhere() -> None:
    def train(run: shoal.Run) -> tuple[float, torch.Tensor, torch.Tensor]:
        return run.mean(run.rank), run.mean(torch.tensor([1.0, run.rank])), run.mean(torch.tensor(run.rank))

    for number, tensor, integer in train_in_threads(4, train):
        assert number == 1.5 and integer.item() == 1.5
        assert tensor.tolist() == [1.0, 1.5]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_evaluation_scores_each_sample_once(size: int) -> None:
    hub = Hub(size)
    held_out = TensorDataset(torch.arange(11, dtype=torch.float64))

    def train(run: shoal.Run) -> dict[str, float]:
        model = run.model(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)))
        model.train()

        def score(x: torch.Tensor) -> dict[str, Any]:
            assert not model.training and not torch.is_grad_enabled()
            return {"mean": x.mean(), "small": (x < 4).double().mean()}

        scores = run.evaluate(score, held_out, batch_size=2)
        assert model.training and model[1].training
        return scores

    for scores in train_in_threads(size, train, hub=hub):
        assert scores == pytest.approx({"mean": 5.0, "small": 4 / 11})
    (event,) = [event for event in hub.events if isinstance(event, Evaluated)]
    assert event.samples == 11


def test_a_stop_that_one_worker_asks_for_ends_all_loops_at_one_step() -> None:
    hub = Hub(3)

    def train(run: shoal.Run) -> tuple[int, str | None, int]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        epochs = 0
        for epoch in run.epochs(50):
            epochs += 1
            for x, y in epoch.batches(data(), batch_size=4):
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                if run.rank == 1 and run.step == 5:
                    run.stop("converged")
        for _ in run.batches(data(), batch_size=4):
            raise AssertionError("a loop after the stop has nothing to do")
        return run.step, run.stopped, epochs

    results = train_in_threads(3, train, hub=hub)
    assert len(set(results)) == 1
    step, reason, epochs = results[0]
    assert reason == "converged" and 6 <= step <= 8 and epochs == 2
    assert [event.reason for event in hub.events if isinstance(event, StopAgreed)] == ["converged"]


@pytest.mark.parametrize("size", [1, 2])
def test_a_stop_takes_effect_after_the_next_step_alone_too(size: int) -> None:
    def train(run: shoal.Run) -> int:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=4, epochs=9):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step == 2:
                run.stop("enough")
        return run.step

    assert train_in_threads(size, train) == [4] * size


def test_a_stop_between_epochs_starts_no_further_step() -> None:
    def train(run: shoal.Run) -> int:
        for epoch in run.epochs(5):
            for _ in epoch.batches(data(), batch_size=4):
                pass
            if run.is_first and epoch.number == 1:
                run.stop("good enough")
        return run.step

    assert set(train_in_threads(3, train)) == {8}


@pytest.mark.parametrize(
    ("options", "steps"), [({"steps": 15}, 15), ({"steps": 3}, 3), ({"steps": 99, "epochs": 2}, 8)]
)
def test_a_limit_of_steps_ends_the_loop_wherever_it_is(options: dict[str, int], steps: int) -> None:
    def train(run: shoal.Run) -> tuple[int, int]:
        return sum(1 for _ in run.batches(data(), batch_size=4, **options)), run.step

    hub = Hub(3)
    assert train_in_threads(3, train, hub=hub) == [(steps, steps)] * 3
    assert max(event.step for event in hub.events if isinstance(event, StepsApplied)) == steps


def test_a_stop_from_outside_is_followed() -> None:
    hub = Hub(2)

    def train(run: shoal.Run) -> tuple[int, str | None]:
        for _ in run.batches(data(), batch_size=4, epochs=1000):
            if run.step == 7:
                hub.stop_reason = "interrupted by Ctrl-C"
        return run.step, run.stopped

    results = train_in_threads(2, train, hub=hub)
    assert len(set(results)) == 1 and results[0][1] == "interrupted by Ctrl-C"


def test_a_loop_left_by_all_in_the_same_step_is_fine() -> None:
    def train(run: shoal.Run) -> tuple[int, float]:
        for _ in run.batches(data(), batch_size=4):
            if run.step == 2:
                break
        steps = sum(1 for _ in run.batches(data(), batch_size=4))
        return steps, run.mean(1.0)

    assert train_in_threads(3, train) == [(4, 1.0)] * 3


@pytest.mark.parametrize("size", [1, 2])
def test_a_loop_kept_in_a_variable_counts_as_left_after_break(size: int) -> None:
    def train(run: shoal.Run) -> tuple[int, int]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        loader = run.batches(data(), batch_size=4)
        for number, (x, y) in enumerate(loader):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if number == 2:
                break
        seen = run.step
        return seen, sum(1 for _ in run.batches(data(), batch_size=4))

    assert train_in_threads(size, train) == [(3, -(-43 // (4 * size)))] * size


def test_the_length_of_a_loop_is_known_before_it_runs() -> None:
    def train(run: shoal.Run) -> list[int]:
        loops = [
            run.batches(data(), batch_size=4),
            run.batches(data(), batch_size=4, epochs=3),
            run.batches(data(), batch_size=4, steps=7),
            run.batches(data(), batch_size=4, steps=99, epochs=2),
            run.batches(data(), batch_size=2, accumulate=2),
            run.batches(Stream(), batch_size=4, steps=7),
        ]
        with pytest.raises(TypeError, match="stream"):
            len(run.batches(Stream(), batch_size=4))
        lengths = [len(loop) for loop in loops]
        assert lengths == [sum(1 for _ in loop) for loop in loops]
        return lengths

    assert train_in_threads(2, train) == [[6, 18, 7, 12, 12, 7]] * 2


def test_a_lazy_model_is_refused_with_the_fix() -> None:
    with pytest.raises(UsageError, match=re.escape(strategy_texts.no_shape("weight"))):
        train_in_threads(1, lambda run: run.model(nn.LazyLinear(3)))


def test_a_loop_left_early_by_one_worker_is_named_with_the_fix() -> None:
    def train(run: shoal.Run) -> None:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=4):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.rank == 1 and run.step == 1:
                break

    with pytest.raises(WorkersDisagree, match=r"end of loop 1 after 1 steps \(to end it early, use run.stop\)"):
        train_in_threads(2, train)


def test_an_exception_in_the_loop_is_the_script_s_own() -> None:
    def train(run: shoal.Run) -> None:
        for _ in run.batches(data(), batch_size=4):
            raise KeyError("from the script")

    with pytest.raises(KeyError, match="from the script"):
        train_in_threads(1, train)


def test_weights_replace_sample_counts() -> None:
    """A loss that is a mean over tokens: weighting by tokens gives the mean over all tokens of all workers."""
    lengths = [1, 2, 3, 4, 5, 6, 7, 8]
    dataset = [torch.arange(float(length), dtype=torch.float64) + length for length in lengths]

    def train(run: shoal.Run, batch: int) -> torch.Tensor:
        model = run.model(nn.Linear(1, 1, bias=False).double())
        nn.init.ones_(model.weight)
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        for tokens in run.batches(dataset, batch_size=batch, collate=lambda samples: torch.cat(samples)[:, None]):
            run.weight(len(tokens))
            model(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach().clone()

    (one,) = train_in_threads(1, lambda run: train(run, 4))
    for other in train_in_threads(2, lambda run: train(run, 2)):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def test_accumulation_updates_once_per_step_and_says_so() -> None:
    def train(run: shoal.Run) -> list[bool]:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        applied = []
        for x, y in run.batches(data(24), batch_size=4, accumulate=3):
            before = model.weight.detach().clone()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            applied.append(run.applied)
            assert run.applied != torch.equal(before, model.weight)
        return applied

    assert train_in_threads(2, train) == [[False, False, True]] * 2
    assert train_in_threads(1, train) == [[False, False, True] * 2]


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(17))


def test_a_data_loader_s_own_collate_is_used() -> None:
    loader = DataLoader(range(10), batch_size=2, collate_fn=lambda samples: ("mine", samples), shuffle=False)

    def train(run: shoal.Run) -> list[int]:
        seen: list[int] = []
        for tag, samples in run.batches(loader):
            assert tag == "mine" and len(samples) == 2
            iteration = run._session.iteration
            assert iteration is not None
            seen += samples if iteration.weight else []
        return seen

    first, second = train_in_threads(2, train)
    assert sorted(first + second) == list(range(10))


def test_streams_are_shared_out() -> None:
    def train(run: shoal.Run) -> list[int]:
        seen: list[int] = []
        for batch in run.batches(Stream(), batch_size=3):
            iteration = run._session.iteration
            assert iteration is not None
            seen += batch.tolist() if iteration.weight else []
        return seen

    found = train_in_threads(2, train)
    assert sorted(index for own in found for index in own) == list(range(17))


def test_fewer_samples_than_workers_is_an_error() -> None:
    def train(run: shoal.Run) -> None:
        for _ in run.batches(data(2), batch_size=4):
            pass

    with pytest.raises(DataError, match="2 samples"):
        train_in_threads(3, train)


def test_events_tell_what_happened() -> None:
    hub = Hub(2)

    def train(run: shoal.Run) -> None:
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=4, epochs=2):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)

    train_in_threads(2, train, hub=hub)
    (started,) = [event for event in hub.events if isinstance(event, LoopStarted)]
    assert (started.steps_per_epoch, started.global_batch, started.samples_per_epoch) == (6, 8, 43)
    assert [event.epoch for event in hub.events if isinstance(event, EpochEnded)] == [0, 1]
    reports = [event for event in hub.events if isinstance(event, StepsApplied)]
    last = {event.worker: event for event in reports}  # with the totals of all before
    assert sum(event.samples for event in last.values()) == 86
    assert all(event.values["loss"] >= 0 for event in reports)
    assert all(event.bytes_sent > 0 for event in last.values())
    (ended,) = [event for event in hub.events if isinstance(event, LoopEnded)]
    assert (ended.loop, ended.step) == (1, 12)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda run: run.batches(data(), batch_sise=4), texts.no_option("batch_sise", "did you mean 'batch_size'")),
        (lambda run: run.batches(data(), batch_size=4, epochs=0), texts.bad_count("epochs", 0)),
        (lambda run: run.batches(data(), batch_size=4, accumulate=0), texts.bad_count("accumulate", 0)),
        (lambda run: run.weight(3), texts.WEIGHT_OUTSIDE_LOOP),
        (lambda run: run.log(loss="high"), texts.logged_no_number("loss", "high")),
        (lambda run: run.log(loss=torch.ones(2)), texts.logged_tensor("loss", [2])),
        (lambda run: run.keep(thing=3), texts.not_kept("thing", 3)),
        (lambda run: run.model(3), texts.no_model(3)),
        (lambda run: run.optimizer(3), texts.no_optimizer(3)),
        (lambda run: run.epochs(0), texts.bad_count("epochs", 0)),
        (lambda run: run.batches(data(), batch_size=4, steps=0), texts.bad_count("steps", 0)),
    ],
)
def test_calls_that_cannot_work_say_so(call: Any, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        train_in_threads(1, call)
