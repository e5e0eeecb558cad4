"""An engine of an installed package in a whole job: `--on namespaces`, with settings of its own. Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from shoal.events import CheckpointPublished, JobStarted, WorkerDied, WorkerJoined, WorkerStarted
from support import served_script
from support.launcher import PATIENCE, events_in, leftovers, shoal
from support.network import Network
from support.offers import offer
from support.served_script import assert_each_sample_once, result

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "support.namespaces_settings:NAMESPACES"
    monkeypatch.setenv("PYTHONPATH", offer(tmp_path / "site", "shoal.engines", namespaces=place))


def started(network: Network, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`shoal run` on the first machine."""
    (folder / "runtime").mkdir(mode=0o700, exist_ok=True)
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "runtime"), "OMP_NUM_THREADS": "1"}
    options = {"cwd": folder, "env": variables, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    return network.start(0, "-m", "shoal", "run", *arguments, **options)


def wait_until_replaced(run_dir: Path) -> None:
    """Until a checkpoint was published after the third worker had joined."""
    limit = time.monotonic() + 4 * PATIENCE
    while time.monotonic() < limit:
        events = events_in(run_dir)
        joined = [place for place, event in enumerate(events) if isinstance(event, WorkerJoined) and event.worker == 2]
        if joined and any(isinstance(event, CheckpointPublished) for event in events[joined[0] :]):
            return
        time.sleep(0.1)
    raise AssertionError([event for event in events_in(run_dir) if not isinstance(event, WorkerJoined)])


@needs_root
@pytest.mark.long
@pytest.mark.timeout(10 * PATIENCE)
def test_a_job_trains_is_mended_and_resumed_on_an_engine_that_a_package_offers(tmp_path: Path) -> None:
    """Processes do not see the run directory and the token's folder, which are on the launcher's machine alone."""
    served_script.write(tmp_path, pause=0.2)
    run = tmp_path / "run"
    with Network(3) as network:
        names = network.namespaces[1:]
        chosen = ("--on", "namespaces", f"--namespaces={' '.join(names)}", "--hide-folders", "run:runtime")
        saved = ("--run-dir", "run", "--checkpoint-to", str(tmp_path / "store"), "--checkpoint-every", "5")
        chaos = ("--chaos", "kill worker 1 at step 8")
        launcher = started(network, tmp_path, "-n", "2", *chosen, *saved, *chaos, "script.py")
        wait_until_replaced(run)
        launcher.send_signal(signal.SIGINT)
        output, _ = launcher.communicate(timeout=4 * PATIENCE)
        assert launcher.returncode == 130, output
        assert leftovers(tmp_path) == []

        resumed = started(network, tmp_path, "--resume", "run", "--chaos=")
        output, _ = resumed.communicate(timeout=4 * PATIENCE)
        assert resumed.returncode == 0, output
    assert leftovers(tmp_path) == []
    assert_each_sample_once(result(tmp_path))
    events = events_in(run)
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]
    assert 2 in [event.worker for event in events if isinstance(event, WorkerStarted)]
    assert len([event for event in events if isinstance(event, JobStarted)]) == 2
    hosts = {event.address.partition(":")[0] for event in events if isinstance(event, WorkerJoined)}
    assert hosts == {network.host(1), network.host(2)}
    recorded = (run / "config.toml").read_text()
    assert 'on = "namespaces"\n' in recorded and f'namespaces = "{" ".join(names)}"\n' in recorded


def test_what_the_engine_refuses_is_said_before_anything_starts(tmp_path: Path) -> None:
    served_script.write(tmp_path)
    for options, words in {
        ("--on", "namespace"): "did you mean 'namespaces'?",
        ("--on", "namespaces"): "--on namespaces has no namespaces",
        ("--on", "namespaces", "--namespaces", "no-such"): "the namespace no-such cannot be used: ",
        ("--namespaces", "a"): "--namespaces a is for another engine than local",
    }.items():
        outcome = shoal(tmp_path, "run", "-n", "2", "--run-dir", "run", *options, "script.py")
        assert outcome.code == 2 and words in outcome.stderr, outcome.stderr
        assert not (tmp_path / "run").exists()
