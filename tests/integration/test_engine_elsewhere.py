"""A whole job whose workers run elsewhere: machines with addresses and file systems of their own, through an engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shoal.events import CheckpointPublished, WorkerDied, WorkerJoined, WorkerStarted
from support.launcher import PATIENCE, events_in
from support.network import PROGRAMS, Network

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

LAUNCHER = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from shoal.job_config import JobConfig
from shoal.launching.run_job import run_job
from support.namespace_engine import NamespaceEngine, NamespaceEngineConfig
config = NamespaceEngineConfig({namespaces!r}, hidden=(Path("run").absolute(), Path("runtime").absolute()))
settings = JobConfig(
    workers=2, min_workers=2, spares=1, address={address!r}, run_dir="run", checkpoint_to=str(Path("store").absolute()),
    chaos="kill worker 1 at step 8", progress="plain",
)
sys.exit(run_job(settings, {script!r}, (), open_engine=lambda: NamespaceEngine(config)).exit_code)
"""


@pytest.mark.long
def test_a_job_runs_on_machines_that_share_nothing_with_its_launcher(tmp_path: Path) -> None:
    """The run directory and the token's folder are on the launcher's machine alone; a worker that dies is replaced."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    with Network(3) as network:
        program = LAUNCHER.format(
            path=sys.path,
            namespaces=network.namespaces[1:],
            address=f"{network.host(0)}:0",
            script=str(PROGRAMS / "network_training.py"),
        )
        variables = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime"), "OMP_NUM_THREADS": "1"}
        launcher = network.start(0, "-c", program, cwd=tmp_path, env=variables)
        output, _ = launcher.communicate(timeout=4 * PATIENCE)
    assert launcher.returncode == 0, output
    events = events_in(tmp_path / "run")
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]
    assert [event.worker for event in events if isinstance(event, WorkerStarted)] == [2]
    joined = {event.worker: event.address.partition(":")[0] for event in events if isinstance(event, WorkerJoined)}
    assert set(joined) == {0, 1, 2}
    assert set(joined.values()) == {network.host(1), network.host(2)}
    assert any(isinstance(event, CheckpointPublished) for event in events)
    for worker in (0, 2):
        assert (tmp_path / f"run/logs/worker-{worker}.log").read_text().endswith("exact\n")
    assert not list((tmp_path / "runtime").iterdir())
