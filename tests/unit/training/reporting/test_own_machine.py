"""What a worker tells of its machine, and what it measures of itself."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import psutil
import pytest
import torch

import shoal
from shoal import events
from shoal.training.reporting import own_machine as module
from shoal.training.reporting.own_machine import UseMeter, own_machine
from support.training import Hub, train_in_threads


def test_machine_is_the_one_this_runs_on() -> None:
    told = own_machine(3)
    assert (told.worker, told.host, told.python) == (3, platform.node(), platform.python_version())
    assert told.torch == torch.__version__
    assert told.cores == len(os.sched_getaffinity(0))
    assert 0 < told.memory <= psutil.virtual_memory().total
    assert told.processor


def test_a_container_has_the_memory_that_it_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(module, "CONTAINER_LIMIT", limit)
    limit.write_text("1000000\n")
    assert own_machine(0).memory == 1_000_000
    whole = psutil.virtual_memory().total
    limit.write_text("max\n")
    assert own_machine(0).memory == whole
    limit.unlink()
    assert own_machine(0).memory == whole


def test_meter_measures_processor_time_and_memory_but_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST", 0.05)
    meter = UseMeter()
    first = meter.measure()
    assert meter.measure() is first, "a new one is not due yet"
    resident = psutil.Process().memory_info().rss
    assert 0.5 * resident < first.memory < 2 * resident
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    second = meter.measure()
    assert second.processor - first.processor >= 0.1
    assert second.age - first.age >= 0.05


def test_every_worker_tells_of_its_machine_once_and_of_its_use_with_every_report() -> None:
    hub = Hub(2)

    def script(run: shoal.Run) -> None:
        for _ in run.batches(list(range(24)), batch_size=3, epochs=3):
            run.log(loss=1.0)

    train_in_threads(2, script, hub=hub)
    told = [event for event in hub.events if isinstance(event, events.WorkerEquipped)]
    assert sorted(event.worker for event in told) == [0, 1]
    reports = [event for event in hub.events if isinstance(event, events.StepsApplied)]
    assert reports
    assert all(event.use is not None and event.use.memory > 0 for event in reports)
