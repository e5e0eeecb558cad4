"""The interface by which a strategy declares its name, its settings and its manners without being loaded.

The launcher, the command line and the coordinator know a strategy by this declaration only, so that none of them
imports torch. Not here: which strategies there are (`kinds`), and what each does (`strategies`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.manners import Manners
from shoal.settings import texts
from shoal.settings.kind_settings import KindSettings


class StrategySettings(KindSettings, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Settings that some strategies have."""

    @property
    def manners(self) -> Manners:
        """The manners of a strategy with these settings. Only a strategy's own settings are asked, not shared ones."""
        return Manners()

    def check_unused(self, chosen: str) -> None:
        for name in self.changed():
            raise UsageError(texts.for_another_strategy(self.given(name), name, chosen))


@dataclass(frozen=True)
class StrategyKind:
    """The declaration of one strategy: one of Shoal's own, or one that a package offers."""

    name: str  # as in `--strategy`
    settings: type[StrategySettings]  # settings of this strategy alone; they say its manners
    maker: str  # MODULE:FUNCTION that makes the strategy, a `strategies.choosing.Maker`; only workers import it
    shares: tuple[type[StrategySettings], ...] = ()  # settings that this strategy shares with others

    @property
    def all_settings(self) -> tuple[type[StrategySettings], ...]:
        return (self.settings, *self.shares)
