"""Which strategies and engines there are: Shoal's own, and those of installed packages.

A package offers a strategy by an entry point in the group `shoal.strategies`, and an engine by one in `shoal.engines`:
the name of the entry point is the name of the kind, and its object is the `StrategyKind` or `EngineKind`. A name from a
command line or from another process never leads to any other import. This module reads the metadata of packages only
for names that Shoal itself does not have, since reading takes time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.all_reduce_settings import ALL_REDUCE
from shoal.settings.engines.engine_settings import DASK, THIS_MACHINE, EngineKind
from shoal.settings.engines.ray_settings import RAY
from shoal.settings.engines.slurm_settings import SLURM
from shoal.settings.engines.spark_settings import SPARK
from shoal.settings.engines.ssh_settings import SSH
from shoal.settings.kind_settings import KindSettings
from shoal.settings.parameter_server_settings import PARAMETER_SERVER
from shoal.settings.setting_checks import nearest, offered
from shoal.settings.strategy_settings import StrategyKind

OWN_STRATEGIES: Mapping[str, StrategyKind] = {kind.name: kind for kind in (ALL_REDUCE, PARAMETER_SERVER)}
OWN_ENGINES: Mapping[str, EngineKind] = {kind.name: kind for kind in (THIS_MACHINE, SSH, SLURM, RAY, SPARK, DASK)}


class DeclaredKind(Protocol):
    """A strategy or an engine, as it declares itself without being loaded."""

    @property
    def name(self) -> str: ...

    @property
    def all_settings(self) -> tuple[type[KindSettings], ...]: ...


Declared = TypeVar("Declared", bound=DeclaredKind)


@dataclass(frozen=True)
class KindTable(Generic[Declared]):
    """All strategies, or all engines, by name."""

    word: str  # what one of them is called in messages
    option: str  # the setting that chooses one
    group: str  # of the entry points by which packages offer them
    kind: type[Declared]
    own: Mapping[str, Declared]  # Shoal's own
    _loaded: dict[str, Declared] = field(default_factory=dict)  # of packages

    def named(self, name: str) -> Declared:
        """The one of that name. If there is none, raise a UsageError that lists the known names."""
        known = self.own.get(name) or self._loaded.get(name)
        if known is not None:
            return known
        found = offered(self.group).get(name)
        if found is None:
            raise UsageError(texts.not_one_of(self.option, name, nearest(name, (*self.own, *offered(self.group)))))
        try:
            kind = found.load()
        except Exception as error:  # whatever the package's code raises
            raise UsageError(texts.kind_fails_to_load(self.word, name, found.value, error)) from error
        if not isinstance(kind, self.kind) or kind.name != name:
            raise UsageError(texts.no_such_kind(self.word, name, found.value, self.kind.__name__))
        self._check_names(kind)
        self._loaded[name] = kind
        return kind

    def beside_own(self) -> list[Declared]:
        """Those of installed packages. Leaves out those that cannot be loaded; `named` says why."""
        found = []
        for name in offered(self.group):
            if name not in self.own:
                try:
                    found.append(self.named(name))
                except UsageError:
                    continue
        return found

    def _check_names(self, kind: Declared) -> None:
        taken = {name: settings for settings in OWN_SETTINGS for name in settings.names()}
        for settings in kind.all_settings:
            for name in settings.names():
                if taken.setdefault(name, settings) is not settings:
                    raise UsageError(texts.setting_taken(self.word, kind.name, name, taken[name].__name__))


def settings_of(kinds: Iterable[DeclaredKind]) -> tuple[type[KindSettings], ...]:
    """The settings of all these kinds, each struct once."""
    return tuple(dict.fromkeys(settings for kind in kinds for settings in kind.all_settings))


STRATEGIES = KindTable("strategy", "strategy", "shoal.strategies", StrategyKind, OWN_STRATEGIES)
ENGINES = KindTable("engine", "on", "shoal.engines", EngineKind, OWN_ENGINES)
OWN_SETTINGS = settings_of([*OWN_ENGINES.values(), *OWN_STRATEGIES.values()])
