"""What runs in an executor of Spark: a task that starts an agent, brings it its errand and stays with it.

Spark sends the errand's parts with the task, so they reach that task's executor alone. Whatever ends the task, its
executor's death too, ends the agent. Not here: who starts tasks (`spark_provider`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from pyspark import TaskContext

from shoal.engines.nodes.agent_task import run_agent
from shoal.engines.nodes.provider import WayIn
from shoal.environment import inherited

EXECUTOR = "--executor-id"  # on the command line of an executor, with its cores
CORES = "--cores"
LOCAL_EXECUTOR = "driver"  # what Spark calls the executor inside the driver (master local[N])
# Variables that Spark sets for its own Python: secrets, a fixed seed of hashes, output in pieces.
SPARKS_OWN = re.compile(r"PYTHON_WORKER_FACTORY_SECRET|_(PY)?SPARK_\w+|PYTHONHASHSEED|PYTHONUNBUFFERED")


class TaskEnd(NamedTuple):
    """How a task's agent has ended. A task returns it as a plain tuple."""

    node: str
    code: int
    said: str  # the last that it printed


class Resource(Protocol):
    """What Spark has given to a task, such as GPUs."""

    @property
    def addresses(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class AgentTask:
    """The task: one agent with one slot, from its start to its end. Spark may log a task, but never its secret."""

    way_in: WayIn = field(repr=False)

    def __call__(self, _: Iterable[int]) -> Iterator[tuple[str, int, str]]:
        context = TaskContext.get()
        assert context is not None, "this runs in tasks of Spark"
        node = node_name(_executors_command(), context.cpus(), context.taskAttemptId())
        variables = agent_variables(inherited({}), context.resources())
        code, lines = run_agent(self.way_in.errand_line(node, 1), variables)
        yield node, code, "\n".join(lines)


def node_name(executor: Sequence[str], cpus: int, task: int) -> str:
    """`executor-N`, or `executor-N-task-M` if the executor has cores for several tasks."""
    number = _value_of(EXECUTOR, executor) or LOCAL_EXECUTOR
    cores = _value_of(CORES, executor)
    has_room_for_one = cores.isdigit() and int(cores) < 2 * cpus
    return f"executor-{number}" if has_room_for_one else f"executor-{number}-task-{task}"


def agent_variables(variables: Mapping[str, str], resources: Mapping[str, Resource]) -> dict[str, str]:
    """Without Spark's secrets, and with the GPUs that are this task's alone."""
    own = {name: value for name, value in variables.items() if not SPARKS_OWN.fullmatch(name)}
    if "gpu" in resources:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(resources["gpu"].addresses)
    return own


def _value_of(option: str, command: Sequence[str]) -> str:
    return next((value for word, value in pairwise(command) if word == option), "")


def _executors_command() -> tuple[str, ...]:
    """The command line of the nearest parent that is an executor; empty: there is none."""
    process = "self"
    with contextlib.suppress(OSError, ValueError):
        while process not in ("0", "1"):
            command = Path("/proc", process, "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            if EXECUTOR in command:
                return tuple(command)
            process = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[1]
    return ()
