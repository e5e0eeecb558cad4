"""Why there is no agent in an executor: Spark's words and agents' exits become one line with a cure."""

from __future__ import annotations

import pytest

from shoal.engines import texts as node_texts
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY
from shoal.engines.spark import texts
from shoal.engines.spark.spark_failures import gone_with, gone_without_agent
from shoal.engines.spark.spark_task import TaskEnd

ABORTED = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times"
NO_MODULE = "ModuleNotFoundError: No module named 'shoal'"
MISMATCH = "Python in worker has different version: 3.9 than that in driver: 3.11"


def test_an_agent_that_was_told_to_leave_is_no_failure() -> None:
    assert gone_with(TaskEnd("executor-0", 0, "")) is None


def test_an_agent_that_fails_is_quoted_with_its_node() -> None:
    gone = gone_with(TaskEnd("executor-0", 7, "first\nlast\n"))
    assert gone is not None
    assert (gone.node, gone.reason) == ("executor-0", node_texts.agent_ended("executor-0", 7, "last"))
    assert gone.lost == node_texts.agent_failed(7, "last")


def test_an_agent_that_cannot_reach_the_launcher_says_which_option_helps() -> None:
    gone = gone_with(TaskEnd("executor-0", AGENT_HAS_NO_WAY, "the agent cannot reach the launcher at 10.0.0.1:7\n"))
    assert gone is not None
    assert gone.reason == node_texts.no_way_back("the agent cannot reach the launcher at 10.0.0.1:7")


def test_an_older_shoal_without_agents_is_told_apart() -> None:
    said = "/usr/bin/python3: No module named shoal.engines.nodes.agent"
    gone = gone_with(TaskEnd("executor-0", 1, said))
    assert gone is not None
    assert gone.reason == texts.no_shoal_in_executor(said)


@pytest.mark.parametrize(
    ("trouble", "wanted"),
    [
        (f"{ABORTED}\nTraceback:\n  ...\n{NO_MODULE}\n\tat java.lang.Thread", texts.no_shoal_in_executor(NO_MODULE)),
        (
            f"{ABORTED}\npyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] {MISMATCH}\n\tat x",
            texts.other_python_in_executor(MISMATCH),
        ),
        (
            f'{ABORTED}: java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory',
            texts.no_python_in_executor("/opt/python"),
        ),
        (
            f"An error occurred while calling x.\n: {ABORTED}: lost\n\tat y",
            texts.spark_job_failed(f"{ABORTED[17:]}: lost"),
        ),
        ("the gateway is closed", texts.spark_job_failed("the gateway is closed")),
    ],
)
def test_sparks_long_words_become_one_line(trouble: str, wanted: str) -> None:
    assert gone_without_agent(trouble).reason == wanted
