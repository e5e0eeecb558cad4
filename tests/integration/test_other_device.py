"""Whole jobs with parameter servers whose models are on a device that stands in for a GPU, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.served_device_jobs import SERVED, ServedJobs, trained


@pytest.mark.long
@pytest.mark.timeout(800)  # three jobs in a test
class TestOnAStandIn(ServedJobs):
    on, kind = "other", "meta"
    beside = "own"  # what all-reduce does with a GPU's tensors is its own, and tested with copies that stand in

    def test_it_ends_with_the_bits_of_a_job_on_cpus(self, tmp_path: Path) -> None:
        assert trained(tmp_path, *SERVED, on="other").digests == trained(tmp_path, *SERVED, on="own").digests
