"""A job's settings from all their origins: given as options, from a TOML file, from a job that is resumed.

Each origin is checked by itself; which settings go with the strategy and the engine is checked once all of them are
known. Not here: what one value may be (`job_config`), settings of strategies and engines by themselves
(`shoal.settings`), and options on a command line (`cli.options`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from shoal.disk import texts
from shoal.errors import UsageError
from shoal.job_config import JobConfig, from_mapping, kinds_for, read_toml
from shoal.settings.engines.engine_settings import EngineSettings
from shoal.settings.kind_settings import KindSettings
from shoal.settings.kinds import ENGINES, STRATEGIES, KindTable
from shoal.settings.strategy_settings import StrategySettings


def merge(
    given: Mapping[str, Any], *, file: str | None, origin: str, base: Mapping[str, Any] = MappingProxyType({})
) -> JobConfig:
    """`given` beats the file, which beats `base`. Each is checked by itself, so that an error names its origin.

    What `given` and the file set is in `JobConfig.given`.
    """
    from_file: dict[str, Any] = {}
    if file is not None:
        from_file = {name.replace("_", "-"): value for name, value in read_toml(Path(file), may_be_pipe=True).items()}
        from_mapping(from_file, origin=file)
    named = {name.replace("_", "-"): value for name, value in given.items()}
    if ":" in str(named.get("workers", "")) and "min-workers" in named:
        raise UsageError(texts.two_minimums(origin, named["workers"]))
    on_top = {**from_file, **named}
    merged = from_mapping({**fitting(base, on_top), **on_top}, origin=origin)
    merged = msgspec.structs.replace(merged, given=tuple(sorted(on_top)))
    # The settings of a resumed job are not all known until its recorded ones are added as `base`.
    return merged if merged.resume and not base else merged.check_together()


def fitting(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`base` without what its strategy or engine has and the given one has not, and without what `given` implies."""
    dropped = {*_left_behind(base, given, STRATEGIES, StrategySettings)}
    dropped |= {*_left_behind(base, given, ENGINES, EngineSettings)}
    for kind in kinds_for(given):
        dropped |= kind.completed(dict(given)).keys() - given.keys()
    return {name: value for name, value in base.items() if name not in dropped}


def _left_behind(
    base: Mapping[str, Any], given: Mapping[str, Any], table: KindTable[Any], settings: type[KindSettings]
) -> Iterator[str]:
    """Names of recorded settings that a job which goes on with another strategy or engine does not have."""
    chosen = given.get(table.option, base.get(table.option))
    if base and chosen != base.get(table.option):
        kept = table.named(chosen).all_settings
        for kind in kinds_for(base):
            if issubclass(kind, settings) and kind not in kept:
                yield from kind.names()
