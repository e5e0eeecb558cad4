"""Writers of the script's own: what they get, in which order, and that they cannot hurt training."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal
from shoal.errors import UsageError
from shoal.events import Advised
from shoal.training import texts
from shoal.training.reporting import reporter
from shoal.training.reporting.sinks import Sinks
from support.training import Hub, train_in_threads

START = nn.Linear(5, 2)


def data() -> TensorDataset:
    x = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x[:, :2].sin())


def training(run: shoal.Run, writer: object) -> list[float]:
    """Four steps that log their loss, an evaluation in each, one at the end; returns the losses of applied steps."""
    if run.is_first:
        run.log_to(writer)
    model = run.model(copy.deepcopy(START))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    logged = []

    def score(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x), y)

    for x, y in run.batches(data(), batch_size=3):
        run.evaluate(score, data(), batch_size=4)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        if run.applied:
            logged.append(loss.item())
    run.evaluate(score, data(), batch_size=4)
    return logged


def test_a_writer_is_not_called_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "INTERVAL", math.inf)
    got: list[int] = []
    seen: list[int] = []

    def train(run: shoal.Run) -> None:
        run.log_to(lambda step, _: got.append(step))
        for (x,) in run.batches(TensorDataset(torch.ones(6)), batch_size=1):
            run.log(x=x)
            seen.append(len(got))

    train_in_threads(1, train)
    assert seen == [0] * 6
    assert got == [1, 2, 3, 4, 5, 6], "all of it when the loop is over"


def test_void_steps_and_their_evaluations_never_reach_a_writer() -> None:
    broken: list[str] = []

    def fault(rank: int, label: str) -> bool:
        if rank == 1 and label == "step 2, exchange 0 of model 1" and not broken:
            broken.append(label)
            return True
        return False

    got: list[tuple[int, dict[str, float]]] = []
    logged, _ = train_in_threads(
        2, lambda run: training(run, lambda step, values: got.append((step, values))), hub=Hub(2, fault=fault)
    )
    assert broken, "the fault was never met"
    assert [(step, list(values)) for step, values in got] == [
        (0, ["evaluation/score"]), (1, ["loss"]), (1, ["evaluation/score"]), (2, ["loss"]),
        (2, ["evaluation/score"]), (3, ["loss"]), (3, ["evaluation/score"]), (4, ["loss"]), (4, ["evaluation/score"]),
    ]  # fmt: skip
    assert [values["loss"] for _, values in got if "loss" in values] == logged


def test_an_evaluation_that_lost_a_peer_is_not_handed_over() -> None:
    broken: list[str] = []

    def fault(rank: int, label: str) -> bool:
        if rank == 1 and label.startswith("step 2, evaluation") and not broken:
            broken.append(label)
            return True
        return False

    got: list[dict[str, float]] = []

    def train(run: shoal.Run) -> int:
        if run.is_first:
            run.log_to(lambda _, values: got.append(values))
        model = run.model(copy.deepcopy(START))
        for x, y in run.batches(data(), batch_size=3):
            F.mse_loss(model(x), y).backward()
            run.evaluate(lambda x, y: F.mse_loss(model(x), y), data(), batch_size=4)  # the step is applied by now
        return run.step

    assert train_in_threads(2, train, hub=Hub(2, fault=fault)) == [4, 4]
    assert broken, "the fault was never met"
    assert len(got) == 3, "one of four was lost, in a step that was not"
    assert all(math.isfinite(value) for values in got for value in values.values())


def test_a_writer_that_raises_is_named_once_and_left_alone() -> None:
    calls: list[int] = []
    other: list[int] = []

    class FullDisk:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append(step)
            if step == 2:
                raise OSError("no space left\nat all")

    def train(run: shoal.Run) -> list[float]:
        if run.is_first:
            run.log_to(FullDisk())
        return training(run, lambda step, _: other.append(step))

    hub = Hub(2)
    logged, _ = train_in_threads(2, train, hub=hub)
    assert len(logged) == 4, "training goes on"
    assert calls == [0, 1, 1, 2]
    assert other == [0, 1, 1, 2, 2, 3, 3, 4, 4], "the other writer goes on"
    (advice,) = [event for event in hub.events if isinstance(event, Advised)]
    assert advice.worker == 0
    assert advice.text == (
        "the writer FullDisk of run.log_to failed at step 2 (OSError: no space left); it gets no more values, "
        "training goes on"
    )


def test_a_script_that_starts_again_hands_its_writers_over_anew() -> None:
    hub = Hub(2, fault=lambda rank, label: rank == 1 and "step 2, exchange 0" in label and hub.number == 1)
    writers: list[list[int]] = []

    def train(run: shoal.Run) -> None:
        if run.is_first:
            writers.append([])
            run.log_to(lambda step, _, own=writers[-1]: own.append(step))
        model = run.model(copy.deepcopy(START))
        optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        for x, y in run.batches(data(), batch_size=3):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            if not run.applied:
                raise RuntimeError("in a void iteration")
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)

    train_in_threads(2, train, hub=hub)
    assert len(writers) == 2
    assert [step for own in writers for step in own] == [1, 2, 3, 4], "each step reaches one of them, once"


@pytest.mark.parametrize("writer", [3, None, "runs"])
def test_what_is_no_writer_is_refused_in_the_call(writer: object) -> None:
    with pytest.raises(UsageError, match=texts.no_writer(type(writer).__name__)):
        Sinks(print).add(writer, script=None)


def test_not_even_an_odd_error_of_a_writer_ends_training() -> None:
    said: list[str] = []
    sinks = Sinks(said.append)

    def writer(step: int, values: dict[str, float]) -> None:
        raise ValueError("\ud800" + "x" * 10_000)

    sinks.add(writer, script=None)
    sinks.put(1, {"loss": 1.0})
    sinks.hand_over()
    assert len(said) == 1
    assert len(said[0].encode()) < 1000


def test_tensorboard_has_every_step(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        logged, _ = train_in_threads(2, lambda run: training(run, writer))
    read = EventAccumulator(str(tmp_path)).Reload()
    assert set(read.Tags()["scalars"]) == {"loss", "evaluation/score"}
    assert [(event.step, event.value) for event in read.Scalars("loss")] == list(enumerate(logged, start=1))
    assert [event.step for event in read.Scalars("evaluation/score")] == [0, 1, 2, 3, 4]


WANDB_SCRIPT = """
import json, torch, wandb, shoal
from torch.utils.data import TensorDataset

def train(run):
    run.log_to(wandb.init(mode="offline", project="digits", settings=wandb.Settings(console="off")))
    score = lambda x: {"score": x.mean()}
    data = TensorDataset(torch.rand(4))
    run.evaluate(score, data, batch_size=2)
    logged = []
    for (x,) in run.batches(data, batch_size=1):
        run.log(loss=x)
        logged.append(x.item())
        run.evaluate(score, data, batch_size=2)
    run.evaluate(score, data, batch_size=2)
    wandb.finish()
    return logged

print(json.dumps(shoal.main(train, progress="none")))
"""


@pytest.mark.long
def test_weights_and_biases_has_every_step(tmp_path: Path) -> None:
    """In a process of its own: it leaves threads behind."""
    script = tmp_path / "script.py"
    script.write_text(WANDB_SCRIPT, encoding="utf-8")
    quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "OTEL_SDK_DISABLED": "true"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, **quiet}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logged = json.loads(done.stdout.splitlines()[-1])
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history = {row["_step"]: row for row in wandb_history(file.read_bytes())}
    assert [history[step]["loss"] for step in (1, 2, 3, 4)] == logged
    assert all("evaluation/score" in history[step] for step in range(5))


def wandb_history(data: bytes) -> list[dict[str, Any]]:
    """What a run of Weights & Biases has logged: records of a LevelDB log, each one protobuf message."""
    from wandb.proto import wandb_internal_pb2

    rows, place, whole = [], 7, b""
    while place + 7 < len(data):
        if 32768 - place % 32768 < 7:  # what is left of a block is padding
            place += 32768 - place % 32768
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece of one
            record = wandb_internal_pb2.Record.FromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows
