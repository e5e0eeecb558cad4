"""The hosts file: what may stand in it, its defaults, and what is said about mistakes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.engines import texts
from shoal.engines.ssh.hosts_file import MOST_HOSTS, Host, HostTable, read_hosts
from shoal.errors import UsageError


def written(folder: Path, text: str) -> Path:
    path = folder / "hosts.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as raised:
        read_hosts(path)
    return str(raised.value)


def test_a_host_has_what_its_table_says_and_sensible_defaults(tmp_path: Path) -> None:
    text = """
    [plain]
    [full]
    address = "me@10.0.0.7"
    slots = 4
    python = "~/venv/bin/python"
    folder = "/data/project"
    shared = true
    """
    assert read_hosts(written(tmp_path, text)) == (
        Host("plain", "plain", 0, sys.executable, "", is_shared=False),
        Host("full", "me@10.0.0.7", 4, "~/venv/bin/python", "/data/project", is_shared=True),
    )


KNOWN = HostTable.__struct_encode_fields__


def test_an_unknown_key_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    path = written(tmp_path, "[a]\nslot = 4\n")
    assert refused(path) == texts.unknown_host_key(path, "a", "slot", "slots", KNOWN)
    path = written(tmp_path, "[a]\nxyz = 4\n")
    assert refused(path) == texts.unknown_host_key(path, "a", "xyz", "", KNOWN)


def test_wrong_values_are_named_with_file_and_host(tmp_path: Path) -> None:
    path = written(tmp_path, '[a]\nslots = "four"\n')
    assert refused(path) == texts.wrong_host_value(path, "a", "slots", "Expected int, got str")
    assert refused(written(tmp_path, "[a]\nslots = -1\n")).startswith(f"host a in {path}: slots: ")
    path = written(tmp_path, "a = 3\n")
    assert refused(path) == texts.no_host_table(path, "a")


@pytest.mark.parametrize("address", ["-oProxyCommand=x", "a b"])
def test_an_address_is_never_taken_for_an_option_of_ssh(tmp_path: Path, address: str) -> None:
    path = written(tmp_path, f'[a]\naddress = "{address}"\n')
    assert refused(path) == texts.bad_host_address(path, "a", address)


def test_a_file_that_is_missing_empty_or_no_toml_is_an_error(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.toml") == texts.hosts_file_missing(tmp_path / "none.toml")
    path = written(tmp_path, "")
    assert refused(path) == texts.hosts_file_size(path, 0, MOST_HOSTS)
    path = written(tmp_path, "[a\n")
    assert refused(path).startswith(f"the hosts file {path} is no TOML: ")
