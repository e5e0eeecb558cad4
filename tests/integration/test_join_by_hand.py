"""`shoal coordinator` on one machine and `shoal join` on others: each has an address and file systems of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from shoal.cli import texts
from shoal.errors import Refused, UsageError
from shoal.events import GenerationFormed, WorkerDied, WorkerEquipped
from shoal.membership.core import reasons
from shoal.membership.record.first_event import script_digest
from support.launcher import PATIENCE, events_in, wait_for_line, write_token
from support.network import PROGRAMS, Network
from support.own_machines import OwnMachines

pytestmark = [pytest.mark.long, pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")]

TOKEN = "a token that was copied by hand"
COORDINATOR, STORE = 0, 3  # machines; those between them have workers
# A client on the object store's machine: it makes the bucket, or prints what is in it.
ASK = """
import sys, time, urllib.error, urllib.request
for _ in range(600):
    try:
        print(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:5000/bucket", method=sys.argv[1])).read())
        break
    except urllib.error.URLError:
        time.sleep(0.1)
"""
# Workers that take their Python or torch for another version.
OTHER_PYTHON = """
import platform, runpy
platform.python_version_tuple = lambda: ("3", "99", "1")
runpy.run_path("train.py", run_name="__main__")
"""
OTHER_TORCH = """
import runpy, torch
torch.__version__ = "9.9.0"
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[OwnMachines]:
    """Three with the same script and token, each in its own folder, and one for an object store."""
    with Network(4) as network:
        made = OwnMachines(network, tmp_path)
        for machine in range(3):
            shutil.copy(PROGRAMS / "network_training.py", made.home(machine) / "train.py")
            write_token(made.home(machine) / "token", TOKEN)
        yield made
        for process in network.processes:
            if process.stderr is not None:
                process.stderr.close()


def address(machines: OwnMachines) -> str:
    return f"{machines.network.host(COORDINATOR)}:7000"


def coordinator(machines: OwnMachines, *options: str) -> subprocess.Popen[str]:
    """Started and listening."""
    place = ("--address", address(machines), "--token-file", "token", "--run-dir", "run")
    made = machines.start(COORDINATOR, "coordinator", *place, *options, "train.py")
    wait_for_line(made, "listening on")
    return made


def joining(machines: OwnMachines, machine: int, *words: str, **variables: str) -> subprocess.Popen[str]:
    return machines.start(machine, "join", address(machines), "--token-file", "token", *words, **variables)


def said(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=2 * PATIENCE)
    return process.returncode, stdout, stderr


def error_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and the one line that a user reads, besides those that say what is being tried."""
    code, stdout, stderr = said(process)
    assert "Traceback" not in stdout + stderr
    [line] = [line for line in (stdout + stderr).splitlines() if "error: " in line]
    return code, line.partition("error: ")[2]


def open_store(machines: OwnMachines) -> None:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    machines.network.start(STORE, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000", **quiet)
    assert machines.network.start(STORE, "-c", ASK, "PUT").wait(PATIENCE) == 0
    machines.variables |= {
        "AWS_ENDPOINT_URL": f"http://{machines.network.host(STORE)}:5000",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def other_shoal(machines: OwnMachines, machine: int) -> dict[str, str]:
    """Variables with which a process there takes its Shoal for another version."""
    about = machines.home(machine) / "other" / "shoal-99.0.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: shoal\nVersion: 99.0\n")
    return {"PYTHONPATH": "/mnt/other"}


def test_joiners_that_share_nothing_but_the_network_train_and_a_killed_one_is_made_up_for(
    machines: OwnMachines,
) -> None:
    open_store(machines)
    kept = ("--checkpoint-to", "s3://bucket/runs", "--checkpoint-every", "20")
    leading = coordinator(machines, "--workers", "2", "--min-workers", "1", *kept)
    long = {"EPOCHS": "16"}  # so that the job is not over before the third has imported torch on a busy machine
    first, second = joining(machines, 1, **long), joining(machines, 2, **long)
    wait_for_line(second, "step 10")
    second.kill()
    second.wait()
    third = joining(machines, 2, **long)
    for process in (first, third):
        code, stdout, stderr = said(process)
        assert code == 0, stderr
        assert stdout.endswith("exact\n")
    assert said(leading)[0] == 0
    events = events_in(machines.home(COORDINATOR) / "run")
    hosts = {event.worker: event.host for event in events if isinstance(event, WorkerEquipped)}
    formed = [event.workers for event in events if isinstance(event, GenerationFormed)]
    [died] = [event.worker for event in events if isinstance(event, WorkerDied)]
    assert hosts[died] == "machine2"
    assert sorted(hosts[worker] for worker in formed[0]) == ["machine1", "machine2"]
    assert sorted(hosts[worker] for worker in formed[-1]) == ["machine1", "machine2"]
    assert died not in formed[-1]
    assert any(len(workers) == 1 for workers in formed), "the first trains on alone meanwhile"
    for machine in (1, 2):
        assert not (machines.home(machine) / "run").exists()
    stored, _ = machines.network.start(STORE, "-c", ASK, "GET").communicate(timeout=PATIENCE)
    assert "/manifest" in stored, stored


def test_a_joiner_with_another_version_of_torch_shoal_or_python_is_turned_away_in_one_line(
    machines: OwnMachines,
) -> None:
    coordinator(machines, "--workers", "1", "--checkpoint-every", "never")
    first = joining(machines, 1, EPOCHS="400")
    wait_for_line(first, "step 0")
    code, line = error_of(joining(machines, 2, **other_shoal(machines, 2)))
    assert code == Refused.exit_code
    assert line.endswith(reasons.other_version("shoal", (1, version("shoal")), (2, "99.0")))
    (machines.home(2) / "other_torch.py").write_text(OTHER_TORCH)
    code, line = error_of(joining(machines, 2, "other_torch.py"))
    assert code == Refused.exit_code
    assert line.endswith(reasons.other_version("torch", (1, version("torch").partition("+")[0]), (3, "9.9.0")))
    (machines.home(2) / "other_python.py").write_text(OTHER_PYTHON)
    code, line = error_of(joining(machines, 2, "other_python.py"))
    assert code == Refused.exit_code
    own = ".".join(map(str, sys.version_info[:2]))
    assert line.endswith(reasons.other_version("Python", (1, own), (4, "3.99")))
    wait_for_line(first, "step")  # the job trains on


def test_what_a_joiner_lacks_is_said_in_one_line(machines: OwnMachines) -> None:
    coordinator(machines, "--workers", "2", "--checkpoint-every", "never")
    own = machines.home(1) / "train.py"
    right = script_digest(str(own))
    own.write_text(own.read_text() + "# changed\n")
    code, line = error_of(joining(machines, 1))
    assert (code, line) == (UsageError.exit_code, texts.other_script("train.py", script_digest(str(own)), right))
    own.unlink()
    code, line = error_of(joining(machines, 1))
    assert code == UsageError.exit_code
    assert "the script train.py does not exist" in line
    write_token(machines.home(2) / "token", "another one")
    code, line = error_of(joining(machines, 2))
    assert code == Refused.exit_code
    assert "token" in line
    (machines.home(2) / "token").unlink()
    code, line = error_of(joining(machines, 2))
    assert code == UsageError.exit_code
    assert "--token-file" in line
