"""Every applied step has a row, and what was logged in it is there, once, as it was."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.errors import UsageError
from shoal.events import Advised, StepsApplied, WorkerEquipped
from shoal.steps import StepRow
from shoal.strategies.strategy import Iteration
from shoal.training import texts
from shoal.training.reporting import reporter
from shoal.training.reporting.reporter import Reporter
from shoal.values import TimeShares
from shoal.wire.messages import Report, encode
from support.training import Hub, ThreadPeers, train_in_threads

START = nn.Linear(5, 2)


def data(samples: int = 24) -> TensorDataset:
    x = torch.randn(samples, 5, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x[:, :2].sin())


def rows_of(hub: Hub, worker: int) -> list[StepRow]:
    reports = [event for event in hub.events if isinstance(event, StepsApplied) and event.worker == worker]
    return [row for event in reports for row in event.rows]


def logging_loop(run: shoal.Run, **options: Any) -> list[tuple[bool, float]]:
    """What was logged in each iteration, and whether it counted."""
    model = run.model(copy.deepcopy(START))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    logged = []
    for x, y in run.batches(data(), batch_size=3, **options):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        logged.append((run.applied, loss.item()))
    return logged


def test_every_applied_step_has_one_row_with_its_own_values() -> None:
    hub = Hub(2)
    results = train_in_threads(2, lambda run: logging_loop(run, epochs=3), hub=hub)
    for worker, logged in enumerate(results):
        rows = rows_of(hub, worker)
        assert [row.step for row in rows] == list(range(1, 13))
        assert [row.values["loss"] for row in rows] == [loss for _, loss in logged]
        assert [row.epoch for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
        assert [row.samples for row in rows] == [3] * 12
        reports = [event for event in hub.events if isinstance(event, StepsApplied) and event.worker == worker]
        assert sum(row.seconds for row in rows) == pytest.approx(reports[-1].seconds, abs=1e-9)
        assert all(event.seconds == pytest.approx(event.shares.total) for event in reports)
        assert all(row.seconds > 0 for row in rows)
        assert [row.samples for row in rows] == [3] * 12
        assert reports[-1].samples == 36
        assert [row.ended for row in rows] == sorted(row.ended for row in rows)
        assert {row.generation for row in rows} == {event.generation for event in reports} == {1}


def test_values_of_a_void_step_are_nowhere() -> None:
    broken: list[str] = []

    def fault(rank: int, label: str) -> bool:
        if rank == 1 and "step 2, exchange 0" in label and not broken:
            broken.append(label)
            return True
        return False

    hub = Hub(2, fault=fault)
    for worker, logged in enumerate(train_in_threads(2, logging_loop, hub=hub)):
        assert [counted for counted, _ in logged].count(False) == 1
        rows = rows_of(hub, worker)
        assert [row.step for row in rows] == [1, 2, 3, 4]
        assert [row.values["loss"] for row in rows] == [loss for counted, loss in logged if counted]


def test_accumulated_batches_are_one_row() -> None:
    hub = Hub(2)
    logged, _ = train_in_threads(2, lambda run: logging_loop(run, accumulate=2), hub=hub)
    rows = rows_of(hub, 0)
    assert [(row.step, row.samples) for row in rows] == [(1, 6), (2, 6)]
    assert [row.values["loss"] for row in rows] == [loss for counted, loss in logged if counted]


def test_a_stand_in_has_a_row_without_samples_and_values() -> None:
    hub = Hub(2)

    def train(run: shoal.Run) -> None:
        for (x,) in run.batches(TensorDataset(torch.ones(3)), batch_size=1):
            run.log(mean=x.mean())

    train_in_threads(2, train, hub=hub)
    rows = sorted((row.step, row.samples, len(row.values)) for worker in (0, 1) for row in rows_of(hub, worker))
    assert rows == [(1, 1, 1), (1, 1, 1), (2, 0, 0), (2, 1, 1)]


def test_a_tensor_that_changes_later_is_recorded_as_it_was() -> None:
    hub = Hub(1)

    def train(run: shoal.Run) -> None:
        total = torch.zeros(())
        for (x,) in run.batches(TensorDataset(torch.ones(5)), batch_size=1):
            total += x.sum()
            run.log(total=total)

    train_in_threads(1, train, hub=hub)
    assert [row.values["total"] for row in rows_of(hub, 0)] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_values_logged_outside_loops_have_rows_of_their_own() -> None:
    hub = Hub(1)

    def train(run: shoal.Run) -> None:
        run.log(parameters=12)
        for _ in run.batches(TensorDataset(torch.ones(2)), batch_size=1):
            run.log(loss=1.0)
        run.log(done=True)

    train_in_threads(1, train, hub=hub)
    rows = rows_of(hub, 0)
    assert [(row.step, row.samples, row.values) for row in rows] == [
        (0, 0, {"parameters": 12.0}), (1, 1, {"loss": 1.0}), (2, 1, {"loss": 1.0}), (2, 0, {"done": 1.0}),
    ]  # fmt: skip
    assert (rows[0].seconds, rows[-1].seconds) == (0.0, 0.0)


def test_the_step_of_a_loop_that_is_left_has_a_row() -> None:
    hub = Hub(2)

    def train(run: shoal.Run) -> None:
        model = run.model(copy.deepcopy(START))
        for number, (x,) in enumerate(run.batches(TensorDataset(torch.ones(20, 5)), batch_size=1)):
            model(x).sum().backward()
            run.log(number=number)
            if number == 2:
                break

    train_in_threads(2, train, hub=hub)
    assert [(row.step, row.values) for row in rows_of(hub, 1)] == [(n + 1, {"number": float(n)}) for n in range(3)]


def test_a_script_that_starts_again_does_not_record_what_it_has_logged_before() -> None:
    hub = Hub(2, fault=lambda rank, label: rank == 1 and "step 1, exchange 0" in label and hub.number == 1)
    starts = []

    def train(run: shoal.Run) -> None:
        starts.append(run.rank)
        run.log(width=5)
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=3):
            F.mse_loss(model(x), y).backward()
            if not run.applied:
                raise RuntimeError("in a void iteration")
            optimizer.step()
            optimizer.zero_grad()

    train_in_threads(2, train, hub=hub)
    assert len(starts) == 4, "both started again"
    for worker in (0, 1):
        rows = rows_of(hub, worker)
        assert [(row.step, row.values) for row in rows] == [(0, {"width": 5.0}), *((step, {}) for step in range(1, 5))]


def test_numbers_that_json_cannot_say_are_null() -> None:
    hub = Hub(1)

    def train(run: shoal.Run) -> None:
        for _ in run.batches(TensorDataset(torch.ones(1)), batch_size=1):
            run.log(bad=math.nan, large=torch.tensor(math.inf), good=1)

    train_in_threads(1, train, hub=hub)
    assert [row.values for row in rows_of(hub, 0)] == [{"bad": None, "large": None, "good": 1.0}]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"x" * 201: 1.0}, texts.log_name_too_long("x" * 201, 200)),
        ({f"name {number}": 1.0 for number in range(4001)}, texts.too_many_log_names("name 4000", 4000)),
        ({"loss": torch.ones(2)}, texts.logged_tensor("loss", [2])),
        ({"loss": torch.tensor(1j)}, texts.logged_no_number("loss", 1j)),
        ({"loss": "low"}, texts.logged_no_number("loss", "low")),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_the_call(values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        train_in_threads(1, lambda run: run.log(**values))


def iteration(step: int, samples: int = 1) -> Iteration:
    return Iteration(
        step=step - 1, weight=samples, earlier_weight=0, step_samples=2 * samples, samples=samples, own_samples=samples
    )


def test_what_was_applied_is_told_before_the_members_regroup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who dies while it regroups takes nothing with it; the time of regrouping is the next step's."""
    monkeypatch.setattr(reporter, "INTERVAL", math.inf)
    hub = Hub(1)
    peers = ThreadPeers(hub, 0)
    try:
        made = Reporter(peers)
        made.keep_logged(iteration(1, 4), step=1)
        made.add(shares=TimeShares(compute=0.5), epoch=0)
        made.send(step=1)
        made.keep_logged(iteration(2, 4), step=2)
        assert hub.events == []
        made.tell(step=2)
        assert [(row.step, row.samples, row.total) for row in rows_of(hub, 0)] == [(1, 4, 8), (2, 4, 8)]
        made.tell(step=2)
        told = [type(event) for event in hub.events]
        assert told == [WorkerEquipped, StepsApplied], "there is no more to tell"
        made.add(shares=TimeShares(compute=0.5, other=2.0), epoch=0)
        made.keep_logged(iteration(3, 4), step=3)
        made.add(shares=TimeShares(compute=0.5), epoch=0)
        made.send(step=3, now=True)
    finally:
        peers.close()
    rows, last = rows_of(hub, 0), hub.events[-1]
    assert [row.step for row in rows] == [1, 2, 3]
    assert isinstance(last, StepsApplied)
    assert last.samples == 12
    assert sum(row.seconds for row in rows) == pytest.approx(last.seconds)
    assert rows[2].seconds > 2.0


def test_a_report_fits_into_a_message_whatever_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest and most names there may be, and steps so quick that time never makes a report due."""
    monkeypatch.setattr(reporter, "INTERVAL", math.inf)
    hub = Hub(1)
    peers = ThreadPeers(hub, 0)
    try:
        made = Reporter(peers)
        many = {f"{number:0200}": 1.5 for number in range(reporter.MOST_NAMES)}
        for step in range(1, 6):
            made.log({**many, f"{0:0200}": step})
            made.keep_logged(iteration(step), step=step)
            made.add(shares=TimeShares(compute=1e-6), epoch=0)
            made.send(step=step)
        for step in range(6, 6 + 2 * reporter.MOST_ROWS):
            made.keep_logged(iteration(step), step=step)
            made.add(shares=TimeShares(compute=1e-6), epoch=0)
            made.send(step=step)
    finally:
        peers.close()
    assert len(rows_of(hub, 0)) >= 5 + reporter.MOST_ROWS
    for event in hub.events:
        encode(Report(events=(event,)))  # raises where it is too long


def test_a_writer_gets_what_the_record_gets() -> None:
    hub = Hub(2)
    got: list[tuple[int, dict[str, float]]] = []

    def train(run: shoal.Run) -> None:
        if run.is_first:
            run.log_to(lambda step, values: got.append((step, values)))
        run.log(width=3)
        logging_loop(run, epochs=2)
        run.evaluate(lambda _, y: {"error": y.square().mean()}, data(), batch_size=4)
        run.log(done=1)

    train_in_threads(2, train, hub=hub)
    expected = [(row.step, row.values) for row in rows_of(hub, 0) if row.values]
    scores = [entry for entry in got if "evaluation/error" in entry[1]]
    assert [entry for entry in got if entry not in scores] == expected
    assert [step for step, _ in got] == sorted(step for step, _ in got)
    assert [step for step, _ in scores] == [8]
    assert not any(isinstance(event, Advised) for event in hub.events)
