"""Agents on the workers of a Dask cluster: a long task on each, also on those that come later.

A thread asks Dask's scheduler for its workers about once a second, and starts and forgets tasks; so the launcher never
waits for Dask. A task holds one thread of its Dask worker until the agent has ended. The agent's standard input ends
with the process of the Dask worker, and then the agent does too. Not here: which workers get an agent (`dask_nodes`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from shoal.engines.dask.dask_nodes import AgentEnd, DaskNodes, DaskWorker, workers_in
from shoal.engines.nodes.agent_programs import last_line
from shoal.engines.nodes.agent_task import run_agent
from shoal.engines.nodes.provider import NodeGone, Provider, WayIn
from shoal.environment import inherited
from shoal.errors import printable

LOOK_SECONDS = 1.0
ASK_SECONDS = 10.0  # for an answer about a task that has ended
LAST_SECONDS = 2.0  # that agents, which have been told to leave, may take to end
END_SECONDS = 5.0  # that the thread may take to end
AHEAD = 1000  # priority of agents: before whatever else waits for a Dask worker


class DaskProvider(Provider):
    def __init__(self, client: Any, first: Collection[DaskWorker], *, is_own: bool) -> None:
        """`first` are those that can be used now. `is_own`: the client is closed with the provider."""
        self._client = client
        self._is_own = is_own
        self._first = tuple(worker.name for worker in first)
        self._reports: queue.SimpleQueue[NodeGone] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # rung with every report
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def open(self, way_in: WayIn) -> tuple[str, ...]:
        self._thread = threading.Thread(target=self._run, args=(way_in,), name="shoal-dask", daemon=True)
        self._thread.start()
        return self._first

    def fileno(self) -> int:
        return self._bell

    def poll(self) -> tuple[NodeGone, ...]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        gone = []
        with contextlib.suppress(queue.Empty):
            while True:
                gone.append(self._reports.get_nowait())
        return tuple(gone)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._ending.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)
        if self._is_own:
            self._client.close()
        if self._thread is None or not self._thread.is_alive():  # else it may still ring
            os.close(self._bell)

    # The thread

    def _run(self, way_in: WayIn) -> None:
        nodes, tasks = DaskNodes(), dict[DaskWorker, Any]()
        while not self._ending.is_set():
            self._hear_ends(nodes, tasks)
            if self._reports.empty():  # else a node's next agent might come before the loss of its last one is heard
                with contextlib.suppress(Exception):  # Dask does not answer; lost agents are noticed without it
                    seen = workers_in(self._client.scheduler_info(n_workers=-1))
                    self._change(nodes, tasks, seen, way_in)
            self._ending.wait(LOOK_SECONDS)
        limit = time.monotonic() + LAST_SECONDS
        while not all(task.done() for task in tasks.values()) and time.monotonic() < limit:
            time.sleep(0.05)
        with contextlib.suppress(Exception):
            self._client.cancel(list(tasks.values()))  # those that wait for a thread

    def _change(
        self, nodes: DaskNodes, tasks: dict[DaskWorker, Any], seen: Collection[DaskWorker], way_in: WayIn
    ) -> None:
        changes = nodes.look(seen, time.monotonic())
        for gone in changes.gone:
            self._report(gone)
        for worker in changes.left:
            if (task := tasks.pop(worker, None)) is not None:
                task.cancel()
        for worker in changes.new:
            tasks[worker] = self._client.submit(
                run_task,
                ErrandLine(way_in.errand_line(worker.name, worker.slots)),
                key=f"shoal-agent-{worker.name}-{secrets.token_hex(4)}",
                workers=[worker.address],
                allow_other_workers=False,
                pure=False,
                retries=0,
                priority=AHEAD,
            )
            nodes.began(worker, time.monotonic())  # last: the next look tries again if Dask did not take the task

    def _hear_ends(self, nodes: DaskNodes, tasks: dict[DaskWorker, Any]) -> None:
        for worker in [worker for worker, task in tasks.items() if task.done()]:
            gone = nodes.ended(worker, _end_of(tasks.pop(worker)), time.monotonic())
            if gone is not None:
                self._report(gone)

    def _report(self, gone: NodeGone) -> None:
        self._reports.put(gone)
        os.eventfd_write(self._bell, 1)


def _end_of(task: Any) -> AgentEnd:
    try:
        code, said = task.result(timeout=ASK_SECONDS)
    except Exception as error:  # from Dask: the task was lost or cancelled, or Shoal is not installed there
        return AgentEnd(said=printable(f"{type(error).__name__}: {error}".partition("\n")[0]))
    return AgentEnd(code, said)


# On a Dask worker


@dataclass(frozen=True)
class ErrandLine:
    """Holds a secret. Dask writes the arguments of tasks that fail into its logs."""

    line: bytes = field(repr=False)


def run_task(errand: ErrandLine) -> tuple[int, str]:
    """The task, which Dask's workers import by its name. Returns the agent's exit code and its last line."""
    code, lines = run_agent(errand.line, inherited({}))
    return code, last_line(lines)
