"""The cluster that tests of `--on slurm` run on is a real one: steps run on both machines, and a loss is noticed."""

from __future__ import annotations

import time

import pytest

from support.slurm_cluster import PATIENCE, is_installed, slurm_cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_installed(), reason="needs root, and the packages slurm-wlm and munge"),
]


def test_a_step_runs_on_both_machines_and_a_lost_machine_is_noticed_and_comes_back() -> None:
    with slurm_cluster() as cluster:
        done = cluster.run("srun", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", "echo $(hostname) $SLURM_JOB_ID")
        assert sorted(done.stdout.splitlines()) == ["node1 1", "node2 1"], done.stderr + cluster.logs()
        cluster.lose("node2")
        limit = time.monotonic() + 2 * PATIENCE
        while cluster.states()["node2"] != "down*":
            assert time.monotonic() < limit, cluster.states()
            time.sleep(0.2)
        assert cluster.states()["node1"] == "idle"
        cluster.boot("node2")
        cluster.wait_until_idle()
    assert not cluster.folder.exists()
