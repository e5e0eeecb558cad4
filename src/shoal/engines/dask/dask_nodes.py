"""Which workers of a Dask cluster are to have an agent, and what the end of one means. Pure.

A node has the name of its Dask worker. When a nanny restarts the worker's process, the name stays and the address
changes. A node whose agent has ended is tried again, since it may come back. Not here: asking Dask (`dask_provider`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.bounds import MOST_NAME
from shoal.engines import texts
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY, NodeGone
from shoal.engines.retries import Retries

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0  # seconds before an agent that has ended is started again
MOST_SLOTS = 256  # of a node: as many as one machine starts and watches
THERE = ("running", "paused")  # states of a Dask worker that is not about to leave


@dataclass(frozen=True)
class DaskWorker:
    name: str
    address: str  # of its process, as Dask writes it: tcp://10.0.0.7:41231
    host: str
    threads: int
    is_busy: bool  # other tasks have all its threads

    @property
    def slots(self) -> int:
        return min(MOST_SLOTS, max(1, self.threads))


@dataclass(frozen=True)
class AgentEnd:
    """How an agent's task ended."""

    code: int | None = None  # the agent's exit code; None: there was no agent
    said: str = ""  # its last words, or Dask's


@dataclass(frozen=True)
class Changes:
    """What to do: report nodes, forget the tasks of agents, start agents. In this order."""

    gone: tuple[NodeGone, ...]
    left: tuple[DaskWorker, ...]
    new: tuple[DaskWorker, ...]


def workers_in(information: Mapping[str, Any]) -> tuple[DaskWorker, ...]:
    """From what Dask's scheduler tells of itself."""
    return tuple(
        DaskWorker(
            name=str(known["name"])[:MOST_NAME],
            address=address,
            host=str(known.get("host", "")),
            threads=int(known["nthreads"]),
            is_busy=_executing(known) >= int(known["nthreads"]),
        )
        for address, known in information.get("workers", {}).items()
        if known.get("status", THERE[0]) in THERE
    )


def _executing(known: Mapping[str, Any]) -> int:
    """Tasks that a Dask worker runs, as its latest report has it."""
    metrics = known.get("metrics", {})
    return int(metrics.get("task_counts", metrics).get("executing", 0))


class DaskNodes:
    def __init__(self) -> None:
        self._with_agent: dict[str, DaskWorker] = {}  # by name
        self._began: dict[str, float] = {}  # by name: when its last agent was started
        self._retries = Retries(FIRST_PAUSE, LONGEST_PAUSE)
        self._pausing: set[str] = set()  # names of nodes whose agent has ended, until they are to be tried again

    def look(self, workers: Collection[DaskWorker], now: float) -> Changes:
        """`workers` are all that Dask has at the time `now`, in seconds.

        Nodes in `new` are named again by the next call, until `began` says that their agents were started. A node that
        has just gone gets its next agent when this is called again: its loss must be heard first.
        """
        there = {(worker.name, worker.address) for worker in workers}
        left = tuple(worker for worker in self._with_agent.values() if (worker.name, worker.address) not in there)
        self._pausing -= set(self._retries.take_due(now))
        kept = {*self._with_agent, *self._pausing}
        new = {worker.name: worker for worker in workers if worker.name not in kept}
        for worker in left:
            del self._with_agent[worker.name]
        gone = tuple(NodeGone(worker.name, texts.dask_worker_left(worker.address)) for worker in left)
        return Changes(gone, left, tuple(new.values()))

    def began(self, worker: DaskWorker, now: float) -> None:
        """Dask has taken the task of the worker's agent."""
        assert worker.name not in self._with_agent, f"node {worker.name} has an agent"
        self._with_agent[worker.name] = worker
        self._began[worker.name] = now

    def ended(self, worker: DaskWorker, end: AgentEnd, now: float) -> NodeGone | None:
        """None: the worker's node was given up before."""
        if self._with_agent.get(worker.name) != worker:
            return None
        del self._with_agent[worker.name]
        self._retries.failed(worker.name, now, lasted=now - self._began[worker.name])
        self._pausing.add(worker.name)
        return NodeGone(worker.name, why_no_agent(worker, end), why_lost(end))


def why_no_agent(worker: DaskWorker, end: AgentEnd) -> str:
    """One line for the user: what is wrong with the node, and what to do."""
    if end.code == AGENT_HAS_NO_WAY:
        return texts.no_way_back(end.said)
    if "No module named" in end.said and "shoal" in end.said:
        return texts.no_shoal_on_dask(worker.name)
    if end.code is None:
        return texts.no_dask_task(worker.name, end.said)
    return texts.agent_ended(worker.name, end.code, end.said)


def why_lost(end: AgentEnd) -> str:
    """Why a node that was there is gone; follows 'node b is gone: '."""
    if end.code is None:
        return texts.dask_task_ended(end.said)
    return texts.agent_failed(end.code, end.said) if end.code else texts.AGENT_ENDED
