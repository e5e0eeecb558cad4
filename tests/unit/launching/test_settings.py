"""Settings that do not go together: said before anything starts, with the nearest that works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching.settings import merge
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.settings.codec_settings import CodecSettings
from shoal.settings.parameter_server_settings import ParameterServerSettings
from support.offers import CODECS, offer

SERVERS = {"strategy": "parameter-server", "servers": 2}
GROUP = {"strategy": "parameter-server", "servers": "rack:7100", "servers_token": "t"}


def merged(options: dict[str, Any], **more: Any) -> JobConfig:
    return merge(options, file=None, origin="the test", **more)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "parameter-server"}, "has no servers: give --servers 2 to start two"),
        ({"servers": 2}, "--servers 2 is for --strategy parameter-server, and the strategy is all-reduce"),
        ({"staleness": 3}, "--staleness 3 is for --strategy parameter-server"),
        ({"normalize": True}, "--normalize is for asynchronous pushes, and --strategy all-reduce has none"),
        ({"noise": 0.5}, "--noise 0.5 is for asynchronous pushes"),
        ({"server_memory": "2GB"}, "--server-memory 2GB is for --strategy parameter-server"),
        (SERVERS | {"replicas": 3}, "give --servers 3 or more, or --replicas 2"),
        (SERVERS | {"staleness": 3, "consistency": "synchronous"}, "--staleness 3 does not go with --consistency"),
        (SERVERS | {"noise": 0.5}, "take --consistency asynchronous"),
        (SERVERS | {"normalize": True}, "--normalize is for asynchronous pushes"),
        (SERVERS | {"schedule": "ring"}, "--schedule ring does not go with --strategy parameter-server"),
        (SERVERS | {"carrier": "gloo"}, "--carrier gloo does not go with --strategy parameter-server"),
        (SERVERS | {"servers_token": "t"}, "--servers-token t is for a group that runs"),
        (SERVERS | {"server_quota": "2GB"}, "--server-quota 2GB is for a group that runs"),
        (GROUP | {"servers_token": ""}, "--servers rack:7100 needs --servers-token FILE"),
        (GROUP | {"server_memory": "2GB"}, "--server-memory 2GB is for servers of the job's own"),
        (GROUP | {"replicas": 2}, "--replicas 2 is for servers of the job's own"),
    ],
)
def test_what_does_not_go_together_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        merged(options)
    assert words in str(caught.value)


def test_every_strategy_takes_a_codec_that_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path / "site", "shoal.codecs", **CODECS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert merged({"codec": "sparse"}).of(CodecSettings).codec == "sparse"
    assert merged(SERVERS | {"codec": "sparse:above=2"}).of(CodecSettings).codec == "sparse:above=2"
    with pytest.raises(UsageError, match=r"--codec is 'unheard-of'; .* sparse"):
        merged(SERVERS | {"codec": "unheard-of"})


@pytest.mark.parametrize(
    "options",
    [
        SERVERS,
        SERVERS | {"replicas": 2, "server_memory": "2GB"},
        SERVERS | {"staleness": 0, "noise": 0.1, "normalize": True, "staleness_scaling": "none"},
        GROUP | {"server_quota": "4GB", "consistency": "asynchronous"},
    ],
)
def test_what_goes_together(options: dict[str, Any]) -> None:
    assert merged(options).strategy == "parameter-server"


def test_a_file_may_leave_the_strategy_to_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("servers = 3\nreplicas = 2\n")
    config = merge({"strategy": "parameter-server"}, file=str(file), origin="the test")
    settings = config.of(ParameterServerSettings)
    assert (settings.server_count, settings.replicas) == (3, 2)


def test_a_job_goes_on_with_another_strategy() -> None:
    recorded = {"strategy": "parameter-server", "servers": "3", "replicas": 2, "consistency": "asynchronous", "seed": 4}
    config = merged({"strategy": "all-reduce"}, base=recorded)
    assert (config.strategy, config.of(ParameterServerSettings), config.seed) == (
        "all-reduce",
        ParameterServerSettings(),
        4,
    )
    back = merged(SERVERS, base={"strategy": "all-reduce", "schedule": "ring", "seed": 4})
    assert (back.of(AllReduceSettings).schedule, back.seed) == ("auto", 4)
    assert back.of(ParameterServerSettings).server_count == 2
    bounded = merged({"staleness": 4}, base=recorded | {"consistency": "synchronous"}).of(ParameterServerSettings)
    assert (bounded.staleness_bound, bounded.is_synchronous) == (4, False)
