"""A job's settings from all their origins: given as options, from a TOML file, from a job that is resumed.

Each origin is checked by itself. Not here: what one value may be (`job_config`), which settings go with which strategy
(`strategy_settings`), and options on a command line (`cli.options`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoal.errors import UsageError
from shoal.job_config import JobConfig, from_mapping, read_toml
from shoal.launching import strategy_settings, texts


def merge(
    given: Mapping[str, Any], *, file: str | None, origin: str, base: Mapping[str, Any] = MappingProxyType({})
) -> JobConfig:
    """`given` beats the file, which beats `base`. Each is checked by itself, so that an error names its origin."""
    from_file: dict[str, Any] = {}
    if file is not None:
        from_file = {name.replace("_", "-"): value for name, value in read_toml(Path(file), may_be_pipe=True).items()}
        from_mapping(from_file, origin=file)
    named = {name.replace("_", "-"): value for name, value in given.items()}
    if ":" in str(named.get("workers", "")) and "min-workers" in named:
        raise UsageError(texts.two_minimums(origin, named["workers"]))
    on_top = {**from_file, **named}
    merged = from_mapping({**strategy_settings.fitting(base, on_top), **on_top}, origin=origin)
    # The settings of a resumed job are not all known until its recorded ones are added as `base`.
    return merged if merged.resume and not base else strategy_settings.check(merged)
