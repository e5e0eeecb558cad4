"""`shoal run --servers` and `shoal servers`: real server processes, which come, die, are replaced and leave nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from shoal import events
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.values import Address
from support.launcher import PATIENCE, STEPPING, leftovers, shoal, started, wait_for_file, write_script

Kind = TypeVar("Kind", bound=events.Event)
RUN = ("run", "-n", "2", "--run-dir", "out", "--strategy", "parameter-server")


def wait_for_events(folder: Path, kind: type[Kind], count: int = 1) -> list[Kind]:
    """Those of a kind in the job's record, once there are so many."""
    limit = time.monotonic() + PATIENCE
    path = folder / "out" / "events.jsonl"
    found: list[Kind] = []
    while time.monotonic() < limit:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []  # the last one may be torn
        told = [msgspec.json.decode(line, type=events.Record).event for line in lines if line.endswith(b"\n")]
        found = [event for event in told if isinstance(event, kind)]
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{len(found)} of {count} {kind.__name__}")


def finish(folder: Path, process: subprocess.Popen[str]) -> str:
    (folder / "done").touch()
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stdout + stderr
    return stdout


def test_servers_come_and_go_with_the_job(tmp_path: Path) -> None:
    write_script(
        tmp_path,
        STEPPING + "open('told', 'a').write(f'{client.welcome.servers} {client.welcome.space}\\n')\n",
        joins=True,
    )
    with started(tmp_path, *RUN, "--servers", "2", "script.py") as process:
        [changed] = wait_for_events(tmp_path, events.ServersChanged)
        assert (changed.servers, changed.is_settled) == ((0, 1), True)
        measured = wait_for_events(tmp_path, events.ServersMeasured)[-1]
        assert {load.server for load in measured.loads} <= {0, 1}
        stdout = finish(tmp_path, process)
    assert "2 servers serve" in stdout
    told = wait_for_file(tmp_path / "told", count=2)
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+ out-[0-9a-f]{8}", line) for line in told)
    assert "Servers" in (tmp_path / "out/report.html").read_text()
    assert leftovers(tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "ended"), [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGTERM, "exited with code 0")]
)
def test_a_server_that_ends_is_replaced(tmp_path: Path, number: signal.Signals, ended: str) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *RUN, "--servers", "2", "--replicas", "2", "script.py") as process:
        first = wait_for_events(tmp_path, events.ServerJoined, 2)[0]
        wait_for_events(tmp_path, events.ServersChanged)
        os.kill(first.process, number)
        [lost] = wait_for_events(tmp_path, events.ServerLost)
        assert (lost.server, "SIGKILL" in lost.reason or "closed" in lost.reason) == (first.server, True)
        assert wait_for_events(tmp_path, events.ServerJoined, 3)[-1].server == 2
        stdout = finish(tmp_path, process)
    assert f"server 2 is started: server {first.server} {ended}" in stdout
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_chaos_kills_servers_that_are_in_the_group(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *RUN, "--servers", "1", "--chaos", "kill server every 1s", "script.py") as process:
        first, second, *_ = wait_for_events(tmp_path, events.FaultInjected, 2)
        assert (first.fault, first.server, second.server, first.worker) == ("kill", 0, 1, None)
        assert [event.server for event in wait_for_events(tmp_path, events.ServerJoined, 2)][:2] == [0, 1]
        stdout = finish(tmp_path, process)
    assert "fault on purpose: kill server 0 (kill server every 1s)" in stdout
    assert leftovers(tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_server_outlives_its_launcher(tmp_path: Path, number: signal.Signals) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *RUN, "--servers", "2", "script.py") as process:
        wait_for_events(tmp_path, events.ServersChanged)
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
    assert leftovers(tmp_path) == []


def test_no_server_outlives_a_script_that_fails(tmp_path: Path) -> None:
    write_script(tmp_path, "raise SystemExit(3)\n")
    outcome = shoal(tmp_path, "run", "--strategy", "parameter-server", "--servers", "2", "script.py")
    assert outcome.code == 1


def address_of(process: subprocess.Popen[str]) -> tuple[str, Path]:
    """Of a group that has just been started."""
    assert process.stdout is not None
    match = re.fullmatch(r"server group at (\S+), token in (\S+)\n", process.stdout.readline())
    assert match is not None
    return match[1], Path(match[2])


def wait_for_servers(address: str, token: Path, *numbers: int) -> None:
    host, port = address.split(":")
    limit = time.monotonic() + PATIENCE
    with KeeperClient(Address(host, int(port)), token.read_text()) as client:
        while True:
            made = client.status().map
            if made is not None and made.is_settled and tuple(server.number for server in made.servers) == numbers:
                return
            assert time.monotonic() < limit, made
            time.sleep(0.05)


@pytest.mark.long
def test_a_group_serves_jobs_and_changes(tmp_path: Path) -> None:
    write_script(tmp_path, "print('ran')\n")
    with started(tmp_path, "servers", "start", "-n", "2", "--token-file", "group-token") as group:
        address, token = address_of(group)
        ask = ("--token-file", str(token))
        wait_for_servers(address, token, 0, 1)
        job = (*RUN, "--servers", address, "--servers-token", str(token), "script.py")
        with started(tmp_path, *job) as process:
            stdout, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, stdout + stderr
        with started(tmp_path, "servers", "add", "1", address, *ask) as process:
            assert process.wait(PATIENCE) == 0
        wait_for_servers(address, token, 0, 1, 2)
        with started(tmp_path, "servers", "remove", "0", address, *ask) as process:
            assert process.wait(PATIENCE) == 0
        wait_for_servers(address, token, 1, 2)
        with started(tmp_path, "servers", "status", address, *ask) as process:
            shown, _ = process.communicate(timeout=PATIENCE)
        assert "jobs: none" in shown
        assert len(shown.splitlines()) == 5
        with started(tmp_path, "servers", "stop", address, *ask) as process:
            assert process.wait(PATIENCE) == 0
        stdout, stderr = group.communicate(timeout=PATIENCE)
    assert group.returncode == 0, stderr
    assert stdout.endswith("the server group has ended\n")
    assert oct(token.stat().st_mode & 0o777) == "0o600"
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_a_group_ends_with_ctrl_c_and_takes_its_token_along(tmp_path: Path) -> None:
    with started(tmp_path, "servers", "start", "-n", "1") as group:
        address, token = address_of(group)
        wait_for_servers(address, token, 0)
        group.send_signal(signal.SIGINT)
        group.communicate(timeout=PATIENCE)
    assert group.returncode == 0
    assert not token.exists()
    assert leftovers(tmp_path) == []
