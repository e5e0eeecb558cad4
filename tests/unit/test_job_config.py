"""Settings: the same names everywhere, checked once; errors name the option, its value and the nearest right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.job_config import JobConfig, from_mapping, from_toml, read_toml
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.settings.setting_checks import size_of
from shoal.values import Address


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"workers": 0}, "--workers is 0; a job needs at least 1"),
        ({"workers": 99_999_999}, "--workers is 99999999; .* at most 10000"),
        ({"run_dir": "a", "run-dir": "b"}, "sets 'run_dir' and 'run-dir', which are one setting"),
        ({"worker": 4}, "sets 'worker', which is no setting; did you mean 'workers'"),
        ({"seed": "four"}, "the test: seed: Expected int, got str"),
        ({"workers": "four"}, "--workers is 'four'; it should be a number, or MIN:MAX such as 2:8"),
        ({"workers": "2:"}, "--workers is '2:'"),
        ({"workers": "5:3"}, "--min-workers is 5 of 3 workers"),
        ({"spares": -1}, "--spares is -1"),
        ({"resize": "batch"}, "--resize is 'batch'"),
        ({"lease": 0}, "--lease is 0"),
        ({"hang_limit": 0}, "--hang-limit is 0"),
        ({"max_failures": 0}, "--max-failures is 0"),
        ({"digest_every": -1}, "--digest-every is -1"),
        ({"schedule": "rings"}, "--schedule is 'rings'; did you mean 'ring'"),
        ({"strategy": "gossip"}, "--strategy is 'gossip'; there is all-reduce, parameter-server"),
        ({"consistency": "synchron"}, "--consistency is 'synchron'; did you mean 'synchronous'"),
        ({"staleness": "-1"}, "--staleness is '-1'; it should be a whole number of updates, 0 or more"),
        ({"staleness": -1}, "--staleness is '-1'"),
        ({"staleness": "1.5"}, "--staleness is '1.5'"),
        ({"staleness_scaling": "learning"}, "--staleness-scaling is 'learning'; there is lr, gradient, none"),
        ({"servers": 0}, "--servers is 0; one machine starts from 1 to 256"),
        ({"servers": "257"}, "--servers is 257; one machine starts from 1 to 256"),
        ({"servers": "rack"}, "--servers is 'rack'; it should be a number of servers to start"),
        ({"servers": "rack:port"}, "--servers is 'rack:port'; it should be HOST:PORT"),
        ({"replicas": 0}, "--replicas is 0"),
        ({"noise": -0.1}, "--noise is -0.1"),
        ({"noise": float("nan")}, "--noise is nan"),
        ({"server_memory": "much"}, "--server-memory is 'much'; it should be a size such as 2GB"),
        ({"server_quota": "0GB"}, "--server-quota is '0GB'"),
        ({"codec": "int8"}, "--codec is 'int8'"),
        ({"seed": -1}, "--seed is -1"),
        ({"bucket_mb": 0}, "--bucket-mb is 0"),
        ({"threads": -2}, "--threads is -2"),
        ({"heartbeat_limit": 0.1}, "--heartbeat-limit is 0.1"),
        ({"address": "nowhere:port"}, "--address is 'nowhere:port'"),
        ({"progress": "lively"}, "did you mean 'live'"),
    ],
)
def test_what_cannot_work_is_named(values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        from_mapping(values, origin="the test")


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
    with pytest.raises(UsageError, match=r"absent\.toml does not exist"):
        read_toml(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("workers = = 3")
    with pytest.raises(UsageError, match=r"bad\.toml is not TOML"):
        read_toml(tmp_path / "bad.toml")
