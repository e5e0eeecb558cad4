"""Where workers run (`--on`): what is said before any host is asked, and the address that is chosen for them."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

import shoal
from shoal.engines import texts as engine_texts
from shoal.engines.nodes.node_engine import GATHER_SECONDS
from shoal.engines.nodes.provider import Provider
from shoal.errors import UsageError
from shoal.job_config import JobConfig, from_mapping
from shoal.launching import texts
from shoal.launching.elsewhere import slurm_jobs
from shoal.launching.elsewhere.chosen import chosen_engine
from shoal.launching.elsewhere.gathering import Nodes
from shoal.settings import texts as setting_texts
from shoal.settings.engines.ssh_settings import SshSettings
from shoal.settings.kinds import OWN_ENGINES
from shoal.values import Address

PACKAGES = {name: kind.package for name, kind in OWN_ENGINES.items() if kind.package}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "hosts.toml").write_text('[here]\naddress = "127.0.0.1"\nslots = 2\n')
    return tmp_path


def config(folder: Path, **given: object) -> JobConfig:
    return from_mapping({"on": "ssh", "hosts": str(folder / "hosts.toml"), "workers": 2, **given}, origin="a test")


def test_a_job_on_this_machine_has_no_other_engine(project: Path) -> None:
    assert chosen_engine(JobConfig(), str(project / "train.py"), ()) is None


def test_the_coordinator_listens_where_the_first_host_reaches_it_and_the_hosts_file_is_found_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    elsewhere = chosen_engine(config(Path(), address="127.0.0.1:0"), "train.py", ())
    assert elsewhere is not None
    assert elsewhere.config.address == "127.0.0.1:0"
    assert elsewhere.config.of(SshSettings).hosts == str(project / "hosts.toml")


def test_more_workers_than_slots_name_both_numbers(project: Path) -> None:
    with pytest.raises(UsageError) as raised:
        chosen_engine(config(project, workers=3), str(project / "train.py"), ())
    assert str(raised.value) == engine_texts.too_few_slots(3, 2, 1)


def test_python_has_the_same_settings_and_the_same_words(project: Path) -> None:
    hosts = str(project / "hosts.toml")
    with pytest.raises(UsageError) as raised:
        shoal.launch(str(project / "train.py"), on="ssh")
    assert str(raised.value) == setting_texts.NO_HOSTS
    with pytest.raises(UsageError) as raised:
        shoal.launch(str(project / "train.py"), on="ssh", hosts=hosts, workers=3)
    assert str(raised.value) == engine_texts.too_few_slots(3, 2, 1)


def test_settings_may_stand_in_a_file(project: Path) -> None:
    (project / "job.toml").write_text('on = "ssh"\nhosts = "nowhere.toml"\n')
    with pytest.raises(UsageError) as raised:
        shoal.launch(str(project / "train.py"), config=str(project / "job.toml"))
    assert str(raised.value) == engine_texts.hosts_file_missing(Path("nowhere.toml"))


@pytest.mark.parametrize(("engine", "package"), PACKAGES.items())
def test_an_engine_that_is_not_installed_says_what_to_install(
    engine: str, package: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it could not be imported
    with pytest.raises(UsageError) as raised:
        shoal.launch(str(project / "train.py"), on=engine)
    assert str(raised.value) == texts.engine_not_installed(engine, package, f"shoal[{engine}]")
    assert f'pip install "shoal[{engine}]"' in str(raised.value)


def test_a_large_allocation_of_slurm_has_longer_to_come(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs start at once."""
    nodes = [f"node{number}" for number in range(100)]
    for name, value in {"JOB_ID": "7", "JOB_NODELIST": "node[0-99]", "JOB_CPUS_PER_NODE": "4(x100)"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    programs = project / "bin"
    programs.mkdir()
    for name, line in {"srun": "", "sinfo": "", "scontrol": f"printf '%s\\n' {' '.join(nodes)}"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    gathered: list[Nodes] = []

    def gather(provider: Provider, wanted: Nodes) -> Provider:
        gathered.append(wanted)
        provider.close()
        return provider

    monkeypatch.setattr(slurm_jobs, "gathered", gather)
    given = from_mapping({"on": "slurm", "workers": 2, "address": "127.0.0.2:0"}, origin="a test")
    elsewhere = chosen_engine(msgspec.structs.replace(given, given=("address",)), str(project / "train.py"), ())
    assert elsewhere is not None
    elsewhere.open_engine(Address("127.0.0.1", 7000))
    assert gathered[0].seconds == GATHER_SECONDS + 30.0
