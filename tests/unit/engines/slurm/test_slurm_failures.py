"""What is said about a node without an agent, from srun's exit code and lines."""

from __future__ import annotations

import sys

import pytest

from shoal.engines import texts
from shoal.engines.slurm.slurm_provider import why_lost, why_no_agent

EXPIRED = "srun: error: Slurm job 7 has expired"
CHECK = "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7"
UNAVAILABLE = "srun: error: Unable to create step for job 7: Requested node configuration is not available"
NO_PYTHON = "slurmstepd-node2: error: execve(): /venv/bin/python: No such file or directory"
NO_SHOAL = "/venv/bin/python: Error while finding module specification (ModuleNotFoundError: No module named 'shoal')"
TASK = "srun: error: node2: task 0: Exited with exit code 2"
NO_WAY = texts.agent_has_no_way("node2", "10.0.0.1:4000", "Connection refused")


@pytest.mark.parametrize(
    ("code", "lines", "said"),
    [
        (1, [EXPIRED, CHECK], texts.allocation_over("7", EXPIRED)),
        (1, ["a banner", UNAVAILABLE, ""], texts.no_step("node2", UNAVAILABLE)),
        (2, [NO_PYTHON, TASK], texts.no_python_in_step("node2", sys.executable, NO_PYTHON)),
        (1, [NO_SHOAL, TASK], texts.no_shoal_in_step("node2", sys.executable)),
        (3, [NO_WAY, TASK], texts.no_way_back(NO_WAY)),
        (1, [], texts.no_step("node2", "nothing")),
    ],
)
def test_each_cause_has_its_own_words(code: int, lines: list[str], said: str) -> None:
    assert why_no_agent("7", "node2", code, lines) == said


def test_a_node_that_was_there_is_gone_for_a_reason() -> None:
    failed = "srun: error: Node failure on node2"
    assert why_lost(0, []) == texts.AGENT_ENDED
    assert why_lost(0, [failed, ""]) == texts.srun_ended(failed)
