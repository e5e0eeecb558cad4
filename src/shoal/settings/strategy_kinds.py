"""Which strategies there are: Shoal's own, and those of installed packages.

A package offers a strategy by an entry point in the group `shoal.strategies`, whose name is the strategy's and whose
object is its `StrategyKind`. Nothing else is ever imported by a name that comes from a command line or from another
process. Packages are asked only for names that Shoal itself does not have: reading their metadata takes time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.errors import UsageError
from shoal.settings.all_reduce_settings import ALL_REDUCE
from shoal.settings.parameter_server_settings import PARAMETER_SERVER
from shoal.settings.setting_checks import nearest, offered
from shoal.settings.strategy_settings import StrategyKind, StrategySettings

STRATEGY_GROUP = "shoal.strategies"  # of the entry points by which packages offer strategies
OWN: Mapping[str, StrategyKind] = {kind.name: kind for kind in (ALL_REDUCE, PARAMETER_SERVER)}

_loaded: dict[str, StrategyKind] = {}  # of packages, by name


def strategy_kind(name: str) -> StrategyKind:
    """The strategy of that name. A UsageError lists what there is."""
    known = OWN.get(name) or _loaded.get(name)
    if known is not None:
        return known
    found = offered(STRATEGY_GROUP).get(name)
    if found is None:
        raise UsageError(f"--strategy is {name!r}; {nearest(name, (*OWN, *offered(STRATEGY_GROUP)))}")
    try:
        kind = found.load()
    except Exception as error:  # whatever the package's code raises
        raise UsageError(f"the strategy {name!r} of {found.value} cannot be loaded: {error or repr(error)}") from error
    if not isinstance(kind, StrategyKind) or kind.name != name:
        raise UsageError(f"{found.value}, which is offered as the strategy {name!r}, is no StrategyKind of that name")
    _check_names(kind)
    _loaded[name] = kind
    return kind


def kinds_beside_own() -> list[StrategyKind]:
    """What installed packages offer. One that cannot be used is left out: who names it learns why."""
    found = []
    for name in offered(STRATEGY_GROUP):
        if name not in OWN:
            try:
                found.append(strategy_kind(name))
            except UsageError:
                continue
    return found


def settings_of(kinds: Iterable[StrategyKind]) -> tuple[type[StrategySettings], ...]:
    """All their settings, each kind once."""
    return tuple(dict.fromkeys(settings for kind in kinds for settings in kind.all_settings))


def _check_names(kind: StrategyKind) -> None:
    taken = {name: settings for settings in settings_of(OWN.values()) for name in settings.names()}
    for settings in kind.all_settings:
        for name in settings.names():
            if taken.setdefault(name, settings) is not settings:
                raise UsageError(
                    f"the strategy {kind.name!r} has a setting {name!r}, which {taken[name].__name__} has too; give "
                    "the setting another name, or share those settings"
                )
