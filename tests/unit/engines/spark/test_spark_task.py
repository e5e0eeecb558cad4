"""What a task of Spark tells its agent: the executor's own number, and the GPUs that are the task's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engines.nodes.provider import WayIn
from shoal.engines.spark.spark_task import AgentTask, agent_variables, node_name
from shoal.values import Address


def executor(number: str, cores: int) -> tuple[str, ...]:
    """Its command line, as Spark 4 starts it."""
    options = ("--driver-url", "spark://x@driver:7", "--executor-id", number, "--cores", str(cores), "--app-id", "a")
    return ("java", "-cp", "jars/*", "org.apache.spark.executor.CoarseGrainedExecutorBackend", *options)


@pytest.mark.parametrize(
    ("command", "cpus", "name"),
    [
        (executor("3", 1), 1, "executor-3"),
        (executor("3", 4), 4, "executor-3"),
        (executor("3", 7), 4, "executor-3"),  # a second task does not fit
        (executor("3", 4), 1, "executor-3-task-12"),
        (("python",), 1, "executor-driver-task-12"),  # master local[2]: tasks run inside the driver
        ((), 1, "executor-driver-task-12"),
    ],
)
def test_a_node_is_called_after_its_executor_and_after_its_task_where_several_fit(
    command: tuple[str, ...], cpus: int, name: str
) -> None:
    assert node_name(command, cpus, 12) == name


@given(st.integers(1, 64), st.integers(1, 64), st.lists(st.integers(0, 99), min_size=2, unique=True))
def test_tasks_that_run_at_the_same_time_have_different_names(cores: int, cpus: int, tasks: list[int]) -> None:
    at_once = tasks[: max(1, cores // cpus)]
    assert len({node_name(executor("0", cores), cpus, task) for task in at_once}) == len(at_once)


@dataclass(frozen=True)
class Given:
    addresses: tuple[str, ...]


def test_an_agent_gets_the_gpus_of_its_task_and_none_of_sparks_secrets() -> None:
    sparks = {"PYTHON_WORKER_FACTORY_SECRET": "s", "_SPARK_AUTH_SECRET": "s", "PYTHONHASHSEED": "0"}
    variables = {"PATH": "/bin", "PYTHONPATH": "/app", **sparks}
    assert agent_variables(variables, {}) == {"PATH": "/bin", "PYTHONPATH": "/app"}
    assert agent_variables(variables, {"gpu": Given(("1", "3"))})["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_a_task_in_a_log_of_spark_shows_no_token() -> None:
    task = AgentTask(WayIn(Address("10.0.0.1", 7), "the-token"))
    assert "the-token" not in f"{task} {task!r} {[task]}"
