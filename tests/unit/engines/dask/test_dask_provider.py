"""The task on a Dask worker runs an agent to its end, says how that was, and keeps its secret; each worker gets one."""

from __future__ import annotations

import contextlib
import queue
from concurrent.futures import Future
from typing import Any

import pytest

from shoal.engines import texts
from shoal.engines.dask import dask_provider
from shoal.engines.dask.dask_provider import DaskProvider, ErrandLine, run_task
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY, WayIn
from shoal.values import Address


def test_an_agent_that_is_told_nonsense_says_so() -> None:
    assert run_task(ErrandLine(b"nonsense\n")) == (2, texts.NO_ERRAND)


def test_an_agent_that_finds_no_launcher_says_where_it_looked() -> None:
    nobody = Address("127.0.0.1", 1)
    code, said = run_task(ErrandLine(WayIn(nobody, "token").errand_line("a", 1)))
    assert code == AGENT_HAS_NO_WAY
    assert said.startswith(texts.agent_has_no_way("a", nobody, ""))


def test_the_token_is_not_in_what_dask_writes_into_its_logs() -> None:
    """Dask logs the arguments of a task that fails as `repr` has them."""
    assert "token" not in repr(ErrandLine(WayIn(Address("127.0.0.1", 1), "token").errand_line("a", 1)))


class UnsteadyClient:
    """A client of Dask whose connection fails once, when the task for the second of two workers is submitted."""

    def __init__(self) -> None:
        self.submitted: queue.Queue[str] = queue.Queue()  # addresses of workers, in order
        self._calls = 0

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {f"tcp://10.0.0.1:{number}": {"name": number, "nthreads": 1} for number in (1, 2)}}

    def submit(self, *_: object, workers: list[str], **__: object) -> Future[Any]:
        self._calls += 1
        if self._calls == 2:
            raise OSError("the connection was lost")
        self.submitted.put(workers[0])
        return Future()

    def cancel(self, tasks: list[Future[Any]]) -> None:
        for task in tasks:
            task.cancel()


def test_a_task_that_dask_did_not_take_is_submitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_provider, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(dask_provider, "LAST_SECONDS", 0.0)
    client = UnsteadyClient()
    with contextlib.closing(DaskProvider(client, (), is_own=False)) as provider:
        provider.open(WayIn(Address("127.0.0.1", 1), "token"))
        taken = [client.submitted.get(timeout=30.0) for _ in range(2)]
        assert provider.poll() == ()
    assert taken == ["tcp://10.0.0.1:1", "tcp://10.0.0.1:2"]
    assert client.submitted.empty(), "each has one agent"
