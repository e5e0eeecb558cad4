"""Which settings go with which strategy: checked once all of a job's are known, from its file and command line. Pure.

A mistake is a `UsageError` that names both settings and the nearest that works. Not here: what one value may be
(`job_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.job_config import JobConfig

# Settings that only one strategy has. A job that goes on with another strategy leaves its recorded ones behind.
OWN: Mapping[str, tuple[str, ...]] = {
    "all-reduce": ("schedule", "carrier", "codec"),
    "parameter-server": (
        *("servers", "servers-token", "replicas", "consistency", "staleness", "staleness-scaling"),
        *("noise", "normalize", "server-memory", "server-limit", "server-quota"),
    ),
}


def fitting(base: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """`base` without what belongs to its strategy, where another one is given, and what `given` settles by itself."""
    strategy = given.get("strategy", base.get("strategy"))
    others: set[str] = set()
    if strategy != base.get("strategy"):
        others = {name for kind, names in OWN.items() if kind != strategy for name in names}
    if given.get("staleness"):
        others.add("consistency")
    return {name: value for name, value in base.items() if name not in others}


def check(config: JobConfig) -> JobConfig:
    """Raise for settings that do not go together."""
    if config.strategy != "parameter-server":
        _refuse_servers(config)
        return config
    _check_servers(config)
    _check_consistency(config)
    if config.schedule != "auto" or config.carrier != "shoal":
        unused = f"--schedule {config.schedule}" if config.schedule != "auto" else f"--carrier {config.carrier}"
        raise UsageError(
            f"{unused} does not go with --strategy parameter-server, where workers exchange nothing with each other; "
            "leave it out, or take --strategy all-reduce"
        )
    if config.codec != "identity":
        raise UsageError(
            f"--codec {config.codec} does not go with --strategy parameter-server: pushes and pulls are not encoded; "
            "leave it out, or take --strategy all-reduce"
        )
    return config


def _refuse_servers(config: JobConfig) -> None:
    usual = JobConfig()
    for name in sorted(OWN["parameter-server"], key=lambda name: name != "staleness"):  # which sets others
        value = getattr(config, name.replace("-", "_"))
        if value == getattr(usual, name.replace("-", "_")):
            continue
        given = f"--{name}" if value is True else f"--{name} {value}"
        if name in ("noise", "normalize"):
            raise UsageError(
                f"{given} is for asynchronous pushes, and --strategy {config.strategy} has none; take --strategy "
                "parameter-server --servers 2 --consistency asynchronous"
            )
        raise UsageError(
            f"{given} is for --strategy parameter-server, and the strategy is {config.strategy}; add "
            f"--strategy parameter-server, or leave --{name} out"
        )


def _check_servers(config: JobConfig) -> None:
    if not config.servers:
        raise UsageError(
            "--strategy parameter-server has no servers: give --servers 2 to start two, or --servers HOST:PORT of a "
            "group that `shoal servers start` runs; without servers, take --strategy all-reduce"
        )
    if config.server_group is None:
        if config.replicas > config.server_count:
            raise UsageError(
                f"--replicas is {config.replicas} of {config.servers} servers, and each parameter is on so many "
                f"different ones: give --servers {config.replicas} or more, or --replicas {config.server_count}"
            )
        _refuse(config, ("servers-token", "server-quota"), "a group that runs (--servers HOST:PORT)")
        return
    if not config.servers_token:
        raise UsageError(
            f"--servers {config.servers} needs --servers-token FILE: the file that `shoal servers start` has named"
        )
    _refuse(config, ("server-memory", "replicas"), "servers of the job's own (--servers 2)")


def _refuse(config: JobConfig, names: tuple[str, ...], who: str) -> None:
    usual = JobConfig()
    for name in names:
        value = getattr(config, name.replace("-", "_"))
        if value != getattr(usual, name.replace("-", "_")):
            raise UsageError(f"--{name} {value} is for {who}; with --servers {config.servers} leave it out")


def _check_consistency(config: JobConfig) -> None:
    if not config.is_synchronous:
        return
    if config.staleness:
        raise UsageError(
            f"--staleness {config.staleness} does not go with --consistency synchronous, where nobody is ever ahead; "
            "leave one of them out"
        )
    if config.noise or config.normalize:
        given = f"--noise {config.noise}" if config.noise else "--normalize"
        raise UsageError(
            f"{given} is for asynchronous pushes and does not go with --consistency synchronous; "
            "take --consistency asynchronous"
        )
