"""Clusters of Dask that cannot be used: one line says why, before anything starts."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from shoal.engines import texts
from shoal.engines.dask.dask_nodes import workers_in
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching import texts as launching_texts
from shoal.launching.elsewhere import dask_jobs
from shoal.launching.elsewhere.chosen import chosen_engine
from support.dask_cluster import dask_cluster
from support.launcher import shoal

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        dask_cluster(tmp_path_factory.mktemp("dask")) as cluster,
        Client(cluster.address, set_as_default=False) as made,
    ):
        yield made


def refusal(workers: int = 2) -> str:
    with pytest.raises(UsageError) as raised:
        dask_jobs.chosen(JobConfig(on="dask", workers=workers), None)
    return str(raised.value)


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    script = tmp_path / "script.py"
    script.touch()
    with pytest.raises(UsageError) as raised:
        chosen_engine(JobConfig(on="dask", workers=2), str(script), ())
    assert str(raised.value) == launching_texts.engine_not_installed("dask", "distributed", "shoal[dask]")


def test_without_a_client_and_an_address() -> None:
    assert refusal() == texts.NO_DASK_CLIENT


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    variables = {"DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:1", "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    outcome = shoal(tmp_path, "run", "--on", "dask", "-n", "2", "--run-dir", "run", "script.py", variables=variables)
    assert outcome.code == 2
    assert texts.dask_unreachable("tcp://127.0.0.1:1", "") in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1, outcome.stderr
    assert not (tmp_path / "run").exists()


def test_too_few_threads(client: Client) -> None:
    with client.as_current():
        assert refusal(3) == texts.dask_too_small(3, 2, 2)


def test_workers_that_do_other_things_are_waited_for_a_while(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_jobs, "FREE_SECONDS", 0.5)
    nap = client.submit(time.sleep, 4, pure=False)
    while not any(worker.is_busy for worker in workers_in(client.scheduler_info())):
        time.sleep(0.1)
    with client.as_current():
        assert refusal() == texts.dask_busy(2, 1, 1)
        nap.result()
        monkeypatch.setattr(dask_jobs, "FREE_SECONDS", 30.0)
        chosen: Any = dask_jobs.chosen(JobConfig(on="dask", workers=2), None)
    assert chosen.config.address.startswith("127.0.0.1:")
