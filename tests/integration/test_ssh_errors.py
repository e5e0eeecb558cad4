"""`shoal run --on ssh` with hosts that cannot be used: one line that says what to do, and nothing is started."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.engines import texts
from shoal.settings import texts as setting_texts
from support.launcher import Outcome, shoal, write_script
from support.ssh_server import IS_MISSING, REASON, Place, SshHosts, ssh_hosts

pytestmark = pytest.mark.skipif(IS_MISSING, reason=REASON)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    write_script(tmp_path, "print('runs')")
    with ssh_hosts(tmp_path / "ssh", {"a": Place()}) as made:
        yield made


def run(folder: Path, hosts: SshHosts, text: str, *options: str, **variables: str) -> Outcome:
    (folder / "hosts.toml").write_text(text)
    command = ("run", "--on", "ssh", "--hosts", "hosts.toml", *options, "script.py")
    return shoal(folder, *command, variables={**hosts.variables, **variables})


def assert_refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.stdout == ""
    [line] = [line for line in outcome.stderr.splitlines() if not line.endswith(" ...")]
    for word in words:
        assert word in line


def test_a_host_that_ssh_does_not_know(tmp_path: Path, hosts: SshHosts) -> None:
    outcome = run(tmp_path, hosts, '[a]\naddress = "nowhere.invalid"\n', "--address", "127.0.0.1:0")
    assert_refused(outcome, "ssh does not know the host nowhere.invalid of node a", "ssh said: ssh: Could not resolve")
    assert not (tmp_path / "runs").exists()
    assert_refused(run(tmp_path, hosts, '[a]\naddress = "nowhere.invalid"\n'), "pass --address HOST:0")


def test_a_misspelt_host_is_told_the_nearest_that_answers(tmp_path: Path, hosts: SshHosts) -> None:
    """Also where the address of this machine is looked for along the way to the hosts."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host bigger\n")
    outcome = run(tmp_path, hosts, '[b]\naddress = "biger.invalid"\n[a]\n', HOME=str(tmp_path))
    assert_refused(outcome, "ssh does not know the host biger.invalid of node b; set its address")
    (tmp_path / ".ssh" / "config").write_text("Host bigger.invalid\n")
    outcome = run(tmp_path, hosts, '[b]\naddress = "biger.invalid"\n[a]\n', HOME=str(tmp_path))
    assert_refused(outcome, "of node b; did you mean bigger.invalid? Otherwise set its address", "ssh said: ")
    outcome = run(tmp_path, hosts, '[b]\naddress = "biger.invalid"\n', HOME=str(tmp_path))
    assert_refused(outcome, "leads to host biger.invalid", "did you mean bigger.invalid? Otherwise pass --address")


def test_a_host_that_wants_a_password(tmp_path: Path, hosts: SshHosts) -> None:
    (hosts.folder / "authorized_keys").write_text((hosts.folder / "other_key.pub").read_text())
    assert_refused(run(tmp_path, hosts, "[a]\n"), "`ssh a true` must work without a password", "Permission denied")


def test_a_host_where_nobody_listens(tmp_path: Path, hosts: SshHosts) -> None:
    hosts.kill("a")
    assert_refused(
        run(tmp_path, hosts, "[a]\n"), "ssh cannot reach a of node a; try `ssh a true`", "Connection refused"
    )


def test_a_host_without_that_python(tmp_path: Path, hosts: SshHosts) -> None:
    outcome = run(tmp_path, hosts, '[a]\npython = "/no/such/python"\n')
    assert_refused(outcome, "node a cannot run /no/such/python; set python of that host", "/no/such/python")


def test_a_host_whose_python_has_no_shoal(tmp_path: Path, hosts: SshHosts) -> None:
    bare = tmp_path / "bare"  # the same interpreter without the packages of this environment
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    bare.chmod(0o755)
    outcome = run(tmp_path, hosts, f'[a]\npython = "{bare}"\n')
    assert_refused(outcome, texts.no_shoal_there("a", str(bare)))


def test_a_machine_without_ssh(tmp_path: Path, hosts: SshHosts) -> None:
    assert_refused(run(tmp_path, hosts, "[a]\n", PATH="/nowhere"), texts.NO_SSH)


def test_more_workers_than_slots_is_said_before_any_host_is_asked(tmp_path: Path, hosts: SshHosts) -> None:
    hosts.kill("a")
    outcome = run(tmp_path, hosts, "[a]\nslots = 2\n", "-n", "3")
    assert_refused(outcome, texts.too_few_slots(3, 2, 1))


def test_with_fewer_and_most_workers_hosts_need_slots_for_the_fewer(tmp_path: Path, hosts: SshHosts) -> None:
    outcome = run(tmp_path, hosts, "[a]\nslots = 1\n", "-n", "2:3")
    assert_refused(outcome, texts.too_few_slots(2, 1, 1))
    outcome = run(tmp_path, hosts, "[a]\nslots = 1\n", "-n", "1:2", "--progress", "plain")
    assert outcome.code == 0, outcome
    assert "runs" in outcome.stdout
    assert "worker 1 waits for a place: all 1 slots of the only node are in use" in outcome.stdout


def test_more_workers_than_a_host_has_cores(tmp_path: Path, hosts: SshHosts) -> None:
    cores = len(os.sched_getaffinity(0))
    outcome = run(tmp_path, hosts, "[a]\n", "-n", str(cores + 1))
    assert_refused(outcome, texts.too_few_slots(cores + 1, cores, 1))


def test_settings_that_do_not_go_together(tmp_path: Path, hosts: SshHosts) -> None:
    assert_refused(
        shoal(tmp_path, "run", "--on", "ssh", "script.py", variables=hosts.variables), setting_texts.NO_HOSTS
    )
    outcome = shoal(tmp_path, "run", "--hosts", "hosts.toml", "script.py")
    assert_refused(outcome, setting_texts.hosts_without_ssh("hosts.toml"))
    outcome = shoal(tmp_path, "run", "--on", "shh", "script.py")
    assert_refused(outcome, setting_texts.not_one_of("on", "shh", setting_texts.did_you_mean("ssh")))
