"""Why there is no agent in an executor, from how its task or Spark's job ended. Pure."""

from __future__ import annotations

import re

from shoal.engines import texts as node_texts
from shoal.engines.nodes.agent_programs import NO_SHOAL, last_line
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY, NodeGone
from shoal.engines.spark import texts
from shoal.engines.spark.spark_task import TaskEnd
from shoal.errors import printable

OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\] (?P<said>.*)")
NO_PYTHON = re.compile(r'Cannot run program "(?P<python>[^"]*)"')
NO_PYSPARK = re.compile(r"no module named '?pyspark", re.IGNORECASE)
FAILURE = re.compile(r"Job aborted .*|\w*(Exception|Error): .*")
ANY_NODE = "of Spark"  # where Spark has not said which executor it was


def gone_with(end: TaskEnd) -> NodeGone | None:
    """An agent has ended. None: it was told to leave or lost its connection; the launcher knows of both already."""
    if end.code == 0:
        return None
    lines = end.said.splitlines()
    said = last_line(lines)
    lost = node_texts.agent_failed(end.code, said)
    if any(NO_SHOAL.search(line) for line in lines):
        return NodeGone(end.node, texts.no_shoal_in_executor(said), lost)
    if end.code == AGENT_HAS_NO_WAY:
        return NodeGone(end.node, node_texts.no_way_back(said), lost)
    return NodeGone(end.node, node_texts.agent_ended(end.node, end.code, said), lost)


def gone_without_agent(trouble: str) -> NodeGone:
    """Spark's job has failed: its task never came to start an agent, or its executors were lost too often."""
    return NodeGone(ANY_NODE, _why_none(trouble))


def _why_none(trouble: str) -> str:
    lines = trouble.splitlines()
    if found := OTHER_PYTHON.search(trouble):
        return texts.other_python_in_executor(found["said"])
    if found := NO_PYTHON.search(trouble):
        return texts.no_python_in_executor(found["python"])
    if NO_SHOAL.search(trouble) or NO_PYSPARK.search(trouble):
        said = next(line for line in lines if NO_SHOAL.search(line) or NO_PYSPARK.search(line))
        return texts.no_shoal_in_executor(printable(said.strip()))
    said = next((found[0] for line in lines if (found := FAILURE.search(line))), last_line(lines))
    return texts.spark_job_failed(printable(said))
