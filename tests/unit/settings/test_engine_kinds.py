"""Engines by name: Shoal's own, and what installed packages offer."""

from __future__ import annotations

import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli.jobs.run import parser
from shoal.cli.options import config_from
from shoal.disk.resuming import resumed_settings
from shoal.disk.settings_merge import merge
from shoal.errors import UsageError
from shoal.job_config import JobConfig, from_mapping, from_toml
from shoal.launching import texts as launching_texts
from shoal.launching.elsewhere.chosen import chosen_engine
from shoal.settings import texts
from shoal.settings.engines.ssh_settings import SshSettings
from shoal.settings.given_by_script import check_alone, in_job
from shoal.settings.kinds import ENGINES, OWN_ENGINES
from support.namespaces_settings import NAMESPACES, NamespacesSettings
from support.offers import offer

PLACE = "support.namespaces_settings:NAMESPACES"
OF_TESTS = """
from typing import Annotated
from msgspec import Meta
from shoal.settings.engines.engine_settings import EngineKind, EngineSettings

class Lacking(EngineSettings, frozen=True, kw_only=True):
    pass
class Taken(EngineSettings, frozen=True, kw_only=True):
    hosts: Annotated[str, Meta(description="x")] = ""
class Common(EngineSettings, frozen=True, kw_only=True):
    seed: Annotated[int, Meta(description="x")] = 1

LACKING = EngineKind(name="lacking", maker="nowhere:chosen", settings=Lacking, package="no_such_package")
TAKEN = EngineKind(name="taken", maker="nowhere:chosen", settings=Taken)
COMMON = EngineKind(name="common", maker="nowhere:chosen", settings=Common)
"""


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    kinds = {name: f"engines_of_tests:{name.upper()}" for name in ("lacking", "taken", "common")}
    offer(site, "shoal.engines", namespaces=PLACE, other=PLACE, gone="nowhere.at.all:KIND", **kinds)
    (site / "engines_of_tests.py").write_text(OF_TESTS)
    monkeypatch.syspath_prepend(str(site))


def test_every_engine_of_our_own_can_be_made_where_its_package_is_installed() -> None:
    for name, kind in OWN_ENGINES.items():
        assert name == kind.name
        if kind.maker and (not kind.package or importlib.util.find_spec(kind.package) is not None):
            assert callable(pkgutil.resolve_name(kind.maker))


def test_what_engines_declare_loads_no_engine() -> None:
    code = "import sys, shoal.job_config; print(*[name for name in sys.modules if name.startswith('shoal.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(("shoal.engines", "shoal.launching"))]


def test_a_package_offers_an_engine_with_settings_of_its_own() -> None:
    given = {"on": "namespaces", "namespaces": "a b", "hide_folders": "run"}
    config = from_mapping(given, origin="test").check_together()
    assert config.of(NamespacesSettings).namespaces == "a b"
    assert from_toml(config.to_toml(), origin="test") == config
    assert config.engine is NAMESPACES and NAMESPACES in ENGINES.beside_own()


@pytest.mark.parametrize("arguments", [("--on", "namespaces", "--namespaces", "a b"), ("--namespaces=a b",)])
def test_its_settings_are_options_of_the_command_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('on = "namespaces"\n')
    parsed = parser().parse_all([*arguments, "--config", str(file), "train.py", "--namespaces", "x"])
    assert config_from(parsed).of(NamespacesSettings).namespaces == "a b"
    assert (parsed.script, parsed.arguments) == ("train.py", ["--namespaces", "x"])
    assert "--hide-folders" in parser().format_help()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"on": "namespace"}, texts.not_one_of("on", "namespace", texts.did_you_mean("namespaces"))),
        ({"on": "xyz"}, texts.not_one_of("on", "xyz", texts.there_is([*OWN_ENGINES, "namespaces"]))),
        ({"on": "namespaces"}, "--on namespaces has no namespaces"),
        ({"on": "namespaces", "namespaces": "a;b"}, "--namespaces is 'a;b'"),
        ({"namespaces": "a"}, texts.for_another_engine("--namespaces a", "namespaces", "local")),
        ({"on": "namespaces", "namespaces": "a", "hosts": "x"}, texts.hosts_without_ssh("x")),
        ({"on": "other"}, texts.no_such_kind("engine", "other", PLACE, "EngineKind")),
        (
            {"on": "gone"},
            texts.kind_fails_to_load("engine", "gone", "nowhere.at.all:KIND", ImportError("No module named 'nowhere'")),
        ),
        ({"on": "taken"}, texts.setting_taken("engine", "taken", "hosts", "SshSettings")),
        ({"on": "common"}, texts.setting_taken("engine", "common", "seed", "JobConfig")),
    ],
)
def test_an_engine_that_cannot_be_used_says_why(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UsageError) as caught:
        shoal.launch(str(tmp_path / "train.py"), **given)
    assert words in str(caught.value)


def test_an_engine_whose_package_is_missing_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UsageError) as caught:
        chosen_engine(from_mapping({"on": "lacking"}, origin="test"), str(tmp_path / "train.py"), ())
    assert str(caught.value) == launching_texts.engine_not_installed("lacking", "no_such_package", "no_such_package")


def test_a_script_cannot_choose_where_its_own_processes_run() -> None:
    usual = JobConfig().values()
    with pytest.raises(UsageError, match=r"shoal run --namespaces 'a b' my\.py"):
        check_alone({"namespaces": "a b"}, usual, script="my.py")
    job = from_mapping({"on": "namespaces", "namespaces": "a"}, origin="test").values()
    with pytest.raises(UsageError, match="namespaces='b'"):
        in_job({"namespaces": "b"}, job, ("namespaces",), script="my.py")
    assert in_job({"namespaces": "a"}, job, (), script="my.py").values == {}


def test_a_job_that_goes_on_with_another_engine_leaves_the_settings_of_the_last_one_behind() -> None:
    recorded = {"on": "ssh", "hosts": "hosts.toml", "schedule": "ring", "seed": 3}
    config = merge({"on": "namespaces", "namespaces": "a"}, file=None, origin="test", base=recorded)
    assert (config.of(SshSettings).hosts, config.on, config.seed) == ("", "namespaces", 3)
    assert merge({"workers": 2}, file=None, origin="test", base=recorded).of(SshSettings).hosts == "hosts.toml"


@pytest.mark.parametrize(("engine", "address"), [("slurm", "127.0.0.1:0"), ("dask", "10.0.0.1:7000")])
def test_the_recorded_address_counts_unless_the_engine_says_that_launchers_move(
    engine: str, address: str, tmp_path: Path
) -> None:
    settings = from_mapping({"on": engine, "address": "10.0.0.1:7000"}, origin="test")
    (tmp_path / "config.toml").write_text(settings.to_toml())
    given = from_mapping({"resume": str(tmp_path)}, origin="test")
    resumed = resumed_settings(given, lambda base: merge({}, file=None, origin="test", base=base))
    assert resumed.address == address
