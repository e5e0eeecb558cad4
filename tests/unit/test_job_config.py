"""Settings: the same names everywhere, checked once; errors name the option, its value and the nearest right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.job_config import RESIZES, JobConfig, from_mapping, from_toml, read_toml
from shoal.settings import texts
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.settings.kinds import OWN_STRATEGIES as OWN
from shoal.settings.parameter_server_settings import SCALINGS, ParameterServerSettings
from shoal.settings.setting_checks import nearest, size_of
from shoal.values import Address


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"workers": 0}, texts.bad_workers(0, 10_000)),
        ({"workers": 99_999_999}, texts.bad_workers(99_999_999, 10_000)),
        ({"run_dir": "a", "run-dir": "b"}, texts.set_twice("the test", "run_dir")),
        ({"worker": 4}, texts.no_setting("the test", "worker", texts.did_you_mean("workers"))),
        ({"seed": "four"}, texts.wrong_type("the test", "seed: Expected int, got str")),
        ({"workers": "four"}, texts.bad_workers_range("four")),
        ({"workers": "2:"}, texts.bad_workers_range("2:")),
        ({"workers": "5:3"}, texts.bad_min_workers(5, 3)),
        ({"spares": -1}, texts.out_of_range("spares", -1, 0, 256)),
        ({"resize": "batch"}, texts.not_one_of("resize", "batch", nearest("batch", RESIZES))),
        ({"lease": 0}, texts.out_of_range("lease", 0.0, 1, 3600, "seconds")),
        ({"hang_limit": 0}, texts.out_of_range("hang-limit", 0.0, 1, 86400, "seconds")),
        ({"max_failures": 0}, texts.out_of_range("max-failures", 0, 1, 1000)),
        ({"digest_every": -1}, texts.bad_digest_every(-1)),
        ({"schedule": "rings"}, texts.not_one_of("schedule", "rings", texts.did_you_mean("ring"))),
        ({"strategy": "gossip"}, texts.not_one_of("strategy", "gossip", texts.there_is(OWN))),
        ({"consistency": "synchron"}, texts.not_one_of("consistency", "synchron", texts.did_you_mean("synchronous"))),
        ({"staleness": "-1"}, texts.bad_staleness("-1")),
        ({"staleness": -1}, texts.bad_staleness("-1")),
        ({"staleness": "1.5"}, texts.bad_staleness("1.5")),
        (
            {"staleness_scaling": "learning"},
            texts.not_one_of("staleness-scaling", "learning", texts.there_is(SCALINGS)),
        ),
        ({"servers": 0}, texts.bad_server_count("0", 256)),
        ({"servers": "257"}, texts.bad_server_count("257", 256)),
        ({"servers": "rack"}, texts.bad_servers("rack")),
        ({"servers": "rack:port"}, "--servers is 'rack:port'; it should be HOST:PORT"),
        ({"replicas": 0}, texts.out_of_range("replicas", 0, 1, 256)),
        ({"noise": -0.1}, texts.bad_noise(-0.1)),
        ({"noise": float("nan")}, texts.bad_noise(float("nan"))),
        ({"server_memory": "much"}, texts.bad_size("--server-memory", "much")),
        ({"server_quota": "0GB"}, texts.bad_size("--server-quota", "0GB")),
        ({"codec": "int8"}, texts.not_one_of("codec", "int8", "")),
        ({"seed": -1}, texts.bad_seed(-1)),
        ({"bucket_mb": 0}, texts.bad_bucket_mb(0.0)),
        ({"threads": -2}, texts.bad_threads(-2)),
        ({"heartbeat_limit": 0.1}, texts.out_of_range("heartbeat-limit", 0.1, 0.5, 3600, "seconds")),
        ({"address": "nowhere:port"}, "--address is 'nowhere:port'"),
        ({"progress": "lively"}, texts.not_one_of("progress", "lively", texts.did_you_mean("live"))),
    ],
)
def test_what_cannot_work_is_named(values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_mapping(values, origin="the test")
    assert text in str(caught.value)


def test_a_range_of_workers_is_two_settings() -> None:
    ranged = from_mapping({"workers": "2:8"}, origin="x")
    assert ranged == from_mapping({"workers": 8, "min_workers": 2}, origin="x")
    assert (ranged.fewest, from_mapping({"workers": "8"}, origin="x").fewest) == (2, 1)


def test_staleness_says_that_updates_are_asynchronous() -> None:
    assert from_mapping({}, origin="x").of(ParameterServerSettings).is_synchronous
    bounded = from_mapping({"staleness": 0}, origin="x").of(ParameterServerSettings)
    assert (bounded.is_synchronous, bounded.staleness_bound) == (False, 0)
    free = from_mapping({"consistency": "asynchronous"}, origin="x").of(ParameterServerSettings)
    assert (free.is_synchronous, free.staleness_bound) == (False, None)


@pytest.mark.parametrize(
    ("servers", "count", "group"),
    [("", 0, None), (3, 3, None), ("3", 3, None), ("rack:7100", 0, Address("rack", 7100))],
)
def test_servers_are_a_number_or_an_address(servers: object, count: int, group: Address | None) -> None:
    settings = from_mapping({"servers": servers}, origin="x").of(ParameterServerSettings)
    assert (settings.server_count, settings.server_group) == (count, group)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("2GB", 2_000_000_000), ("2 gb", 2_000_000_000), ("1.5MiB", 1_572_864), ("8KB", 8000)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_of(text, named="it") == size


def test_both_spellings_are_the_same_setting() -> None:
    assert from_mapping({"run_dir": "a"}, origin="x") == from_mapping({"run-dir": "a"}, origin="x")
    assert all("_" not in name for name in JobConfig().values())


@given(
    st.builds(
        JobConfig,
        workers=st.integers(1, 99),
        seed=st.integers(0, 2**63 - 1),
        sync_batchnorm=st.booleans(),
        run_dir=st.text(st.characters(exclude_categories=["Cs"])),
        strategy_settings=st.tuples(
            st.builds(AllReduceSettings, bucket_mb=st.floats(0.001, 1024), deterministic=st.just(True)),
            st.builds(ParameterServerSettings, replicas=st.integers(2, 256)),
        ),
    )
)
def test_a_saved_configuration_reads_back_as_it_was(config: JobConfig) -> None:
    assert from_toml(config.to_toml(), origin="the file") == config


def test_every_character_of_a_path_survives_the_file() -> None:
    config = JobConfig(run_dir="".join(map(chr, range(256))) + "\u2028\U0001f41f")
    assert from_toml(config.to_toml(), origin="the file") == config


def test_files_that_are_missing_or_no_toml_are_named(tmp_path: Path) -> None:
    absent, bad = tmp_path / "absent.toml", tmp_path / "bad.toml"
    with pytest.raises(UsageError) as caught:
        read_toml(absent)
    assert str(caught.value) == texts.config_missing(absent)
    bad.write_text("workers = = 3")
    with pytest.raises(UsageError) as caught:
        read_toml(bad)
    assert str(caught.value).startswith(texts.config_not_toml(bad, ValueError()))
