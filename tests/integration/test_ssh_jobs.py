"""Whole jobs on two hosts that real ssh reaches: kills of workers, hosts and the launcher; the same bits as here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from shoal.cli.records import show
from shoal.engines import texts as engine_texts
from shoal.entry import texts
from shoal.events import (
    AnyEvent,
    CheckpointPublished,
    EngineSaid,
    ProcessPlaced,
    ProgressResumed,
    StepsApplied,
    WorkerDied,
    WorkerEquipped,
    WorkerStarted,
)
from shoal.watch.record.run_record import read_record
from support.launcher import PATIENCE, SHOAL, command_of, events_in, leftovers, processes_in, shoal, started
from support.network import PROGRAMS, Network
from support.ssh_server import IS_MISSING, REASON, Place, SshHosts, ssh_hosts

pytestmark = [pytest.mark.long, pytest.mark.skipif(IS_MISSING, reason=REASON)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_samples.py"
EXACT = "1,437 samples, each used exactly"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    shutil.copy(EXAMPLE, tmp_path / "script.py")
    (tmp_path / "hosts.toml").write_text("[a]\nslots = 4\n[b]\nslots = 4\n")
    with ssh_hosts(tmp_path / "ssh", {"a": Place(), "b": Place()}) as made:
        yield made
    assert made.left == []


def command(*options: str, workers: int = 4) -> tuple[str, ...]:
    on = ("run", "--on", "ssh", "--hosts", "hosts.toml", "-n", str(workers), "--run-dir", "run", "--threads", "1")
    return (*on, "--progress", "plain", *options)


def nodes_of(events: list[AnyEvent]) -> dict[int, str]:
    return {event.worker: event.node for event in events if isinstance(event, WorkerEquipped)}


def until_step(folder: Path, step: int) -> None:
    limit = time.monotonic() + PATIENCE
    while not any(isinstance(one, StepsApplied) and one.step >= step for one in events_in(folder / "run")):
        assert time.monotonic() < limit, events_in(folder / "run")
        time.sleep(0.1)


def pids_on(hosts: SshHosts) -> list[psutil.Process]:
    return [process for host in hosts.servers for process in hosts.processes(host)]


def tensors_in(run_dir: Path) -> dict[tuple[str, str], torch.Tensor]:
    """Of a run's checkpoint, by file and name."""
    parts = sorted((run_dir / "checkpoints").glob("*/*.safetensors"))
    assert parts
    return {(part.name, name): tensor for part in parts for name, tensor in load_file(part).items()}


def assert_ends(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert not alive, [command_of(process) for process in alive]


def test_a_job_on_two_hosts_ends_well_and_a_killed_worker_is_replaced(tmp_path: Path, hosts: SshHosts) -> None:
    options = ("--chaos", "kill worker 1 at step 20", "script.py", "--pause", "0.02")
    outcome = shoal(tmp_path, *command(*options), variables=hosts.variables, patience=3 * PATIENCE)
    assert outcome.code == 0, outcome
    assert EXACT in outcome.stdout
    events = events_in(tmp_path / "run")
    nodes = nodes_of(events)
    assert {worker: nodes[worker] for worker in range(4)} == {0: "a", 1: "b", 2: "a", 3: "b"}
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]
    assert [event.worker for event in events if isinstance(event, WorkerStarted)] == [4]
    placed = {event.worker: event for event in events if isinstance(event, ProcessPlaced)}
    assert placed[4].node == "b"
    assert placed[4].reason.startswith("1 of 4 slots of b were in use")


def test_a_host_that_dies_is_made_up_for_by_free_slots_of_another(tmp_path: Path, hosts: SshHosts) -> None:
    options = command("--min-workers", "4", "script.py", "--pause", "0.05")  # it waits for the new ones
    with started(tmp_path, *options, variables=hosts.variables) as launcher:
        until_step(tmp_path, 10)
        hosts.kill("b")
        stdout, stderr = launcher.communicate(timeout=3 * PATIENCE)
    assert launcher.returncode == 0, stderr
    assert EXACT in stdout
    events = events_in(tmp_path / "run")
    assert {nodes_of(events)[worker] for worker in (4, 5)} == {"a"}
    assert any("its node b is gone" in event.reason for event in events if isinstance(event, WorkerDied))
    assert any(event.text.startswith("node b is gone") for event in events if isinstance(event, EngineSaid))
    assert "! node b is gone" in "\n".join(show.lines(read_record(tmp_path / "run")))
    assert any(isinstance(event, ProgressResumed) for event in events)
    assert leftovers(tmp_path) == []


def test_a_worker_without_a_place_is_in_the_record_and_the_others_go_on(tmp_path: Path, hosts: SshHosts) -> None:
    (tmp_path / "hosts.toml").write_text("[a]\nslots = 1\n[b]\nslots = 1\n")
    options = command("--min-workers", "1", "script.py", "--epochs", "2", "--pause", "0.02", workers=2)
    with started(tmp_path, *options, variables=hosts.variables) as launcher:
        until_step(tmp_path, 5)
        hosts.kill("b")
        stdout, stderr = launcher.communicate(timeout=3 * PATIENCE)
    assert launcher.returncode == 0, stderr
    assert EXACT in stdout
    waits = "worker 2 waits for a place: all 1 slots of the only node are in use"
    assert waits in [event.text for event in events_in(tmp_path / "run") if isinstance(event, EngineSaid)]
    shown = "\n".join(show.lines(read_record(tmp_path / "run")))
    assert f"! {waits}" in shown.partition("what the engine said:")[2].partition("\n\n")[0]
    assert "worker 1 on b" in shown.partition("where processes were put, and why:")[2].partition("\n\n")[0]


def until_said(folder: Path, *beginnings: str) -> None:
    """The record has a line of the engine with each of these beginnings."""
    limit = time.monotonic() + PATIENCE
    while True:
        said = [event.text for event in events_in(folder / "run") if isinstance(event, EngineSaid)]
        if all(any(text.startswith(beginning) for text in said) for beginning in beginnings):
            return
        assert time.monotonic() < limit, said
        time.sleep(0.1)


@pytest.mark.timeout(240)
def test_a_lost_host_is_told_of_in_the_words_of_ssh_and_used_again_when_it_is_back(
    tmp_path: Path, hosts: SshHosts
) -> None:
    (tmp_path / "hosts.toml").write_text("[a]\nslots = 1\n[b]\nslots = 1\n")
    options = command("--min-workers", "2", "script.py", "--pause", "0.02", workers=2)  # it waits for a second worker
    with started(tmp_path, *options, variables=hosts.variables) as launcher:
        until_step(tmp_path, 5)
        hosts.kill("b")
        until_said(tmp_path, "node b is gone: ", "ssh cannot reach b of node b; try `ssh b true`; ssh said: ")
        hosts.revive("b")
        stdout, stderr = launcher.communicate(timeout=3 * PATIENCE)
    assert launcher.returncode == 0, stderr
    assert EXACT in stdout
    events = events_in(tmp_path / "run")
    assert [event.node for event in events if isinstance(event, ProcessPlaced)] == ["a", "b", "b"]
    said = [event.text for event in events if isinstance(event, EngineSaid)]
    assert engine_texts.node_came("b", 1) in said
    assert len(said) == len(set(said)), "each thing is told once"


def test_nothing_is_left_on_any_host_when_the_launcher_is_killed(tmp_path: Path, hosts: SshHosts) -> None:
    with started(tmp_path, *command("script.py", "--pause", "0.05"), variables=hosts.variables) as launcher:
        until_step(tmp_path, 3)
        running = pids_on(hosts)
        assert len([one for one in running if str(tmp_path / "script.py") in command_of(one)]) == 4
        launcher.kill()
        launcher.wait()
        agents = [one for one in running if "sshd" not in one.name()]
        assert_ends(agents)
    limit = time.monotonic() + PATIENCE
    while processes_in(tmp_path) or hosts.left:
        assert time.monotonic() < limit, (processes_in(tmp_path), hosts.left)
        time.sleep(0.1)


def test_ctrl_c_saves_and_leaves_nothing_behind_and_the_job_can_be_resumed(tmp_path: Path, hosts: SshHosts) -> None:
    with started(tmp_path, *command("script.py", "--pause", "0.05"), variables=hosts.variables) as launcher:
        until_step(tmp_path, 3)
        running = [one for one in pids_on(hosts) if "sshd" not in one.name()]
        launcher.send_signal(signal.SIGINT)
        _, stderr = launcher.communicate(timeout=2 * PATIENCE)
    assert launcher.returncode == 130, stderr
    assert_ends(running)
    assert leftovers(tmp_path) == []
    assert hosts.left == []
    assert any(isinstance(event, CheckpointPublished) for event in events_in(tmp_path / "run"))
    resumed = ("run", "--resume", "run", "--progress", "plain")
    outcome = shoal(tmp_path, *resumed, variables=hosts.variables, patience=3 * PATIENCE)
    assert outcome.code == 0, outcome
    assert EXACT in outcome.stdout


def test_ctrl_c_while_hosts_are_being_reached_ends_the_command(tmp_path: Path, hosts: SshHosts) -> None:
    slow = tmp_path / "slow"  # an interpreter that takes its time
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    (tmp_path / "hosts.toml").write_text(f'[a]\nslots = 4\npython = "{slow}"\n')
    with started(tmp_path, *command("script.py"), variables=hosts.variables) as launcher:
        limit = time.monotonic() + PATIENCE
        while not any("sleep" in command_of(one) for one in pids_on(hosts)):
            assert time.monotonic() < limit
            time.sleep(0.05)
        launcher.send_signal(signal.SIGINT)
        _, stderr = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "run").exists()


def test_the_same_seed_gives_the_same_bits_as_on_this_machine(tmp_path: Path, hosts: SshHosts) -> None:
    same = ("--deterministic", "--seed", "7", "--checkpoint-every", "end", "script.py", "--epochs", "1")
    assert shoal(tmp_path, *command(*same), variables=hosts.variables, patience=3 * PATIENCE).code == 0
    here = ("run", "-n", "4", "--run-dir", "here", "--threads", "1", "--progress", "plain", *same)
    assert shoal(tmp_path, *here, patience=3 * PATIENCE).code == 0
    there, own = tensors_in(tmp_path / "run"), tensors_in(tmp_path / "here")
    assert there.keys() == own.keys()
    assert all(torch.equal(there[name], own[name]) for name in own)


def test_a_job_with_servers_keeps_them_on_different_hosts(tmp_path: Path, hosts: SshHosts) -> None:
    shutil.copy(EXAMPLE.with_name("digits.py"), tmp_path / "script.py")
    options = ("--strategy", "parameter-server", "--servers", "2", "script.py", "--epochs", "1")
    outcome = shoal(tmp_path, *command(*options, workers=2), variables=hosts.variables, patience=3 * PATIENCE)
    assert outcome.code == 0, outcome
    placed = [event for event in events_in(tmp_path / "run") if isinstance(event, ProcessPlaced)]
    assert {event.server: event.node for event in placed if event.server is not None} == {0: "a", 1: "b"}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("limit", ["-Sn 64", "-n 64"], ids=["soft", "hard"])
def test_many_hosts_get_as_many_open_files_as_the_system_allows(tmp_path: Path, hosts: SshHosts, limit: str) -> None:
    """Beyond that one line names the limits."""
    (tmp_path / "script.py").write_text("print('runs')")
    (tmp_path / "hosts.toml").write_text("".join(f'[n{number}]\naddress = "a"\nslots = 1\n' for number in range(24)))
    limited = ("sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *SHOAL, *command("script.py", workers=1))
    done = subprocess.run(
        limited,
        cwd=tmp_path,
        env={**os.environ, **hosts.variables, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    if limit == "-Sn 64":
        assert done.returncode == 0, done
        assert "runs" in done.stdout
    else:
        assert done.returncode == 2, done
        assert "could not be started on this machine for node n" in done.stderr
        assert "Too many open files; look at the limits of open files and processes here" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_plain_torch_script_on_several_hosts_is_told_what_to_do(tmp_path: Path, hosts: SshHosts) -> None:
    text = "import torch.distributed as dist; dist.init_process_group('gloo')"
    (tmp_path / "script.py").write_text(text)
    outcome = shoal(tmp_path, *command("script.py", workers=2), variables=hosts.variables, patience=3 * PATIENCE)
    assert outcome.code != 0
    assert texts.plain_torch_elsewhere("a") in outcome.stdout + outcome.stderr


def project_in(folder: Path) -> Path:
    project = folder / "project"
    (project / "runtime").mkdir(parents=True, mode=0o700)
    (project / "hosts.toml").write_text("[a]\nslots = 1\n[b]\nslots = 2\n")
    (folder / "store").mkdir()
    return project


def on_hosts_of_their_own(folder: Path, *words: str) -> str:
    """Run Python in a project on one of three machines. The two hosts do not see the project, the record and tokens.

    Returns what it printed."""
    project = folder / "project"
    with Network(3) as network:
        places = {
            name: Place(network.namespaces[machine], network.host(machine), (project, Path("/dev/shm")))
            for name, machine in (("a", 1), ("b", 2))
        }
        with ssh_hosts(folder / "ssh", places) as hosts:
            variables = {**os.environ, **hosts.variables, "XDG_RUNTIME_DIR": str(project / "runtime")}
            launcher = network.start(0, *words, cwd=project, env=variables)
            output, _ = launcher.communicate(timeout=4 * PATIENCE)
            assert launcher.returncode == 0, output
            assert hosts.left == []
    assert not list((project / "runtime").iterdir())
    return str(output)


def test_a_script_travels_to_hosts_that_share_no_file_system(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    shutil.copy(PROGRAMS / "network_training.py", project / "script.py")
    store = ("--checkpoint-to", str(tmp_path / "store"), "--min-workers", "2")
    words = command("--chaos", "kill worker 1 at step 8", *store, "script.py", workers=2)
    output = on_hosts_of_their_own(tmp_path, "-m", "shoal", *words)
    events = events_in(project / "run")
    assert set(nodes_of(events).values()) == {"a", "b"}
    assert "the slowest of 2 links between 2 hosts goes from" in output
    table = "\n".join(show.lines(read_record(project / "run"))).partition("links between 2 hosts")[2]
    assert sorted(line.split()[0] for line in table.splitlines()[2:4]) == ["a", "b"], "by the engine's names"
    assert [event.worker for event in events if isinstance(event, WorkerDied)] == [1]
    for worker in (0, 2):
        assert (project / f"run/logs/worker-{worker}.log").read_text().endswith("exact\n")


PROGRAM = """
import shoal
from parts.numbers import factor

def train(run, times=1):
    print("worker got", int(run.mean(times * factor)), flush=True)

if __name__ == "__main__":
    common = {"on": "ssh", "hosts": "hosts.toml", "workers": 2, "progress": "none", "checkpoint_every": "never"}
    secret = 7
    def copied(run):
        print("worker got", int(run.mean(secret * factor)), flush=True)
    shoal.launch(train, arguments={"times": 2}, run_dir="run", spares=1, **common).check()
    shoal.launch(copied, run_dir="copied", **common).check()
    from parts.numbers import train
    shoal.launch(train, run_dir="module", **common).check()
"""
MODULE = """
factor = 3

def train(run):
    from parts.others import more
    print("worker got", int(run.mean(factor * more)), flush=True)
"""


def test_functions_travel_with_their_modules_to_hosts_that_share_no_file_system(tmp_path: Path) -> None:
    """Of a script, of no module at all, and of a package."""
    project = project_in(tmp_path)
    (project / "parts").mkdir()
    (project / "parts" / "__init__.py").touch()
    (project / "parts" / "numbers.py").write_text(MODULE)
    (project / "parts" / "others.py").write_text("more = 11\n")
    (project / "program.py").write_text(PROGRAM)
    on_hosts_of_their_own(tmp_path, "program.py")
    for run, got in (("run", "6"), ("copied", "21"), ("module", "33")):
        assert {one.node for one in events_in(project / run) if isinstance(one, ProcessPlaced)} == {"a", "b"}
        for worker in (0, 1):
            assert f"worker got {got}\n" in (project / f"{run}/logs/worker-{worker}.log").read_text()
