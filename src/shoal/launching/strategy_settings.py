"""Which settings go with which strategy: checked once all of a job's are known, from its file and command line. Pure.

A mistake is a `UsageError` that names both settings and the nearest that works. Not here: what one value may be
(`job_config`), and settings of one strategy by themselves (`settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.settings.parameter_server_settings import PARAMETER_SERVER

# Settings that only one strategy has. A job that goes on with another strategy leaves its recorded ones behind.
OWN: Mapping[str, tuple[str, ...]] = {
    "all-reduce": ("schedule", "carrier"),
    "parameter-server": PARAMETER_SERVER,
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
        config.check_unused(config.strategy)
        return config
    config.check_together()
    if config.schedule != "auto" or config.carrier != "shoal":
        unused = f"--schedule {config.schedule}" if config.schedule != "auto" else f"--carrier {config.carrier}"
        raise UsageError(texts.not_with_servers(unused))
    return config
