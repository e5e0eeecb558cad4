"""A tenth of the campaign: signals at random to jobs over all strategies, among joiners, full disks and cuts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from campaign.__main__ import run_job
from campaign.plans import TROUBLES, JobPlan, campaign

SEED = 1
SIGNALS = 10  # in each job
PLANS = tuple(itertools.islice(campaign(seed=SEED, signals=SIGNALS), len(TROUBLES)))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_job_under_fire(plan: JobPlan, tmp_path: Path) -> None:
    _, faults = run_job(plan, tmp_path / "job")
    assert faults == []
