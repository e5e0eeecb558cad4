"""Settings that do not go together: said before anything starts, with the nearest that works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.disk.settings_merge import merge
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.settings import texts
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
        ({"strategy": "parameter-server"}, texts.NO_SERVERS),
        ({"servers": 2}, texts.for_parameter_servers("--servers 2", "servers", "all-reduce")),
        ({"staleness": 3}, texts.for_parameter_servers("--staleness 3", "staleness", "all-reduce")),
        ({"normalize": True}, texts.strategy_pushes_nothing("--normalize", "all-reduce")),
        ({"noise": 0.5}, texts.strategy_pushes_nothing("--noise 0.5", "all-reduce")),
        (
            {"server_memory": "2GB"},
            texts.for_parameter_servers("--server-memory 2GB", "server-memory", "all-reduce"),
        ),
        (SERVERS | {"replicas": 3}, texts.too_few_servers(3, 2)),
        (SERVERS | {"staleness": 3, "consistency": "synchronous"}, texts.nobody_is_ahead("3")),
        (SERVERS | {"noise": 0.5}, texts.for_asynchronous_pushes("--noise 0.5")),
        (SERVERS | {"normalize": True}, texts.for_asynchronous_pushes("--normalize")),
        (SERVERS | {"schedule": "ring"}, texts.workers_exchange_nothing("--schedule ring", "parameter-server")),
        (SERVERS | {"carrier": "gloo"}, texts.workers_exchange_nothing("--carrier gloo", "parameter-server")),
        (SERVERS | {"servers_token": "t"}, texts.for_other_servers("--servers-token t", texts.GROUP_THAT_RUNS, "2")),
        (
            SERVERS | {"server_quota": "2GB"},
            texts.for_other_servers("--server-quota 2GB", texts.GROUP_THAT_RUNS, "2"),
        ),
        (GROUP | {"servers_token": ""}, texts.no_servers_token("rack:7100")),
        (
            GROUP | {"server_memory": "2GB"},
            texts.for_other_servers("--server-memory 2GB", texts.SERVERS_OF_THE_JOB, "rack:7100"),
        ),
        (GROUP | {"replicas": 2}, texts.for_other_servers("--replicas 2", texts.SERVERS_OF_THE_JOB, "rack:7100")),
    ],
)
def test_what_does_not_go_together_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        merged(options)
    assert str(caught.value) == words


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
