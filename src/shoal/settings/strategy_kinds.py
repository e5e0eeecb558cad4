"""Which strategies there are: Shoal's own, and those of installed packages.

A package offers a strategy by an entry point in the group `shoal.strategies`: the name of the entry point is the name
of the strategy, and its object is the `StrategyKind`. A name from a command line or from another process never leads to
any other import. This module reads the metadata of packages only for names that Shoal itself does not have, since
reading takes time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.all_reduce_settings import ALL_REDUCE
from shoal.settings.parameter_server_settings import PARAMETER_SERVER
from shoal.settings.setting_checks import nearest, offered
from shoal.settings.strategy_settings import StrategyKind, StrategySettings

STRATEGY_GROUP = "shoal.strategies"  # of the entry points by which packages offer strategies
OWN: Mapping[str, StrategyKind] = {kind.name: kind for kind in (ALL_REDUCE, PARAMETER_SERVER)}

_loaded: dict[str, StrategyKind] = {}  # of packages, by name


def strategy_kind(name: str) -> StrategyKind:
    """The strategy of that name. If there is none, raise a UsageError that lists the known names."""
    known = OWN.get(name) or _loaded.get(name)
    if known is not None:
        return known
    found = offered(STRATEGY_GROUP).get(name)
    if found is None:
        raise UsageError(texts.not_one_of("strategy", name, nearest(name, (*OWN, *offered(STRATEGY_GROUP)))))
    try:
        kind = found.load()
    except Exception as error:  # whatever the package's code raises
        raise UsageError(texts.strategy_fails_to_load(name, found.value, error)) from error
    if not isinstance(kind, StrategyKind) or kind.name != name:
        raise UsageError(texts.no_strategy_kind(name, found.value))
    _check_names(kind)
    _loaded[name] = kind
    return kind


def kinds_beside_own() -> list[StrategyKind]:
    """Strategies of installed packages. Leaves out those that cannot be loaded; `strategy_kind` says why."""
    found = []
    for name in offered(STRATEGY_GROUP):
        if name not in OWN:
            try:
                found.append(strategy_kind(name))
            except UsageError:
                continue
    return found


def settings_of(kinds: Iterable[StrategyKind]) -> tuple[type[StrategySettings], ...]:
    """The settings of all these strategies, each kind of settings once."""
    return tuple(dict.fromkeys(settings for kind in kinds for settings in kind.all_settings))


def _check_names(kind: StrategyKind) -> None:
    taken = {name: settings for settings in settings_of(OWN.values()) for name in settings.names()}
    for settings in kind.all_settings:
        for name in settings.names():
            if taken.setdefault(name, settings) is not settings:
                raise UsageError(texts.setting_taken(kind.name, name, taken[name].__name__))
