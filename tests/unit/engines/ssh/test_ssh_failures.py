"""What is said about a host without an agent, from ssh's exit code and last lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engines import texts
from shoal.engines.ssh.hosts_file import Host
from shoal.engines.ssh.ssh_failures import is_busy, why_lost, why_no_agent
from shoal.engines.ssh.ssh_provider import MOST_CONFIG_BYTES, MOST_CONFIGURED, configured_hosts, ssh_command

HOST = Host("big", "me@10.0.0.7", 4, "/venv/bin/python", "", is_shared=False)
DENIED = "me@10.0.0.7: Permission denied (publickey,password)."
CHANGED = "Host key verification failed."
UNKNOWN = "ssh: Could not resolve hostname big: Name or service not known"
REFUSED = "ssh: connect to host 10.0.0.7 port 22: Connection refused"
NO_PYTHON = "bash: line 1: /venv/bin/python: No such file or directory"
NO_SHOAL = "/venv/bin/python: Error while finding module specification (ModuleNotFoundError: No module named 'shoal')"
NO_WAY = texts.agent_has_no_way("big", "10.0.0.1:4000", "Connection refused")


@pytest.mark.parametrize(
    ("code", "lines", "said"),
    [
        (255, [DENIED], texts.no_login("big", "me@10.0.0.7", DENIED)),
        (255, ["a banner", CHANGED, ""], texts.no_login("big", "me@10.0.0.7", CHANGED)),
        (255, [UNKNOWN], texts.host_unknown("big", "me@10.0.0.7", UNKNOWN)),
        (255, [REFUSED], texts.host_unreached("big", "me@10.0.0.7", REFUSED)),
        (255, [], texts.no_login("big", "me@10.0.0.7", "nothing")),
        (127, [NO_PYTHON], texts.no_python_there("big", "/venv/bin/python", NO_PYTHON)),
        (1, [NO_SHOAL], texts.no_shoal_there("big", "/venv/bin/python")),
        (3, [NO_WAY], texts.no_way_back(NO_WAY)),
        (1, ["MemoryError"], texts.agent_ended("big", 1, "MemoryError")),
    ],
)
def test_each_cause_has_its_own_words(code: int, lines: list[str], said: str) -> None:
    assert why_no_agent(HOST, code, lines) == said


def test_a_host_that_hangs_up_at_once_may_be_busy() -> None:
    """The second is what ssh prints where a jump host did it."""
    reset = "kex_exchange_identification: read: Connection reset by peer"
    assert is_busy(255, [reset])
    assert is_busy(
        255, ["kex_exchange_identification: Connection closed by remote host", "Connection closed by UNKNOWN"]
    )
    assert not is_busy(255, [REFUSED])
    assert not is_busy(1, [reset])
    assert why_no_agent(HOST, 255, [reset]) == texts.host_unreached("big", "me@10.0.0.7", reset)


@pytest.mark.parametrize(
    ("address", "known", "near"),
    [
        ("nod1", ["node1", "other"], "node1"),
        ("me@nod1", ["you@node1"], "you@node1"),
        ("node1", ["node1"], ""),  # it is the name that ssh does not know
        ("node1", ["big", "10.0.0.7"], ""),
        ("node1", [], ""),
    ],
)
def test_a_misspelt_host_is_told_the_nearest_that_is_known(address: str, known: list[str], near: str) -> None:
    host = Host("a", address, 4, "python", "", is_shared=False)
    assert why_no_agent(host, 255, [UNKNOWN], known) == texts.host_unknown("a", address, UNKNOWN, near)
    assert (f"did you mean {near}?" in why_no_agent(host, 255, [UNKNOWN], known)) is bool(near)


def test_hosts_of_the_users_configuration_are_known_without_patterns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert configured_hosts() == []
    (tmp_path / ".ssh").mkdir()
    config = tmp_path / ".ssh" / "config"
    config.write_text("Host big small\n  HostName 10.0.0.7\n\nhost=third\nHost *.example !big\nHostName no\n#Host no\n")
    assert configured_hosts() == ["big", "small", "third"]
    config.write_text("\n".join(f"Host n{number}" for number in range(2 * MOST_CONFIGURED)))
    assert len(configured_hosts()) == MOST_CONFIGURED
    config.write_bytes(b"Host a\n" + b"#" * MOST_CONFIG_BYTES)
    assert configured_hosts() == []


def test_a_node_that_was_there_is_gone_for_a_reason() -> None:
    assert why_lost(255, ["Timeout, server 10.0.0.7 not responding."]) == texts.ssh_broke(
        "Timeout, server 10.0.0.7 not responding."
    )
    assert why_lost(0, []) == texts.AGENT_ENDED
    assert why_lost(-9, ["last words"]) == texts.agent_failed(-9, "last words")


def test_ssh_asks_nothing_notices_dead_links_and_gets_no_secret_on_its_command_line() -> None:
    command = ssh_command("ssh", HOST)
    assert {"BatchMode=yes", "ServerAliveInterval=2", "ServerAliveCountMax=3"} <= set(command)
    assert command[-3:] == ("--", "me@10.0.0.7", "exec /venv/bin/python -P -m shoal.engines.nodes.agent")
    at_home = Host("a", "a", 0, "~/my envs/python", "", is_shared=False)
    assert ssh_command("ssh", at_home)[-1].startswith("exec ~/'my envs/python' -P")
