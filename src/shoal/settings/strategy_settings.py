"""The interface by which a strategy declares its name, its settings and its manners without being loaded.

The launcher, the command line and the coordinator know a strategy by this declaration only, so that none of them
imports torch. Not here: which strategies there are (`strategy_kinds`), and what each does (`strategies`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from shoal.errors import UsageError
from shoal.manners import Manners
from shoal.settings import texts

Kind = TypeVar("Kind", bound="StrategySettings")


class AllSettings(Protocol):
    """All settings of one job."""

    def of(self, kind: type[Kind]) -> Kind:
        """The settings of one kind."""
        ...


class StrategySettings(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Settings that some strategies have. Each field has a default, and a description for `--help`.

    A mistake raises a `UsageError` that names the setting, its value and the nearest value that works. No two kinds of
    settings have a name in common, since users type the name of a setting without the name of its kind.
    """

    title: ClassVar[str] = ""  # of this group of options in `--help`

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of these settings on the command line and in files."""
        return cls.__struct_encode_fields__

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The given settings by name, numbers as text where the setting is text, and the settings they imply."""
        return given

    @property
    def manners(self) -> Manners:
        """The manners of a strategy with these settings. Only a strategy's own settings are asked, not shared ones."""
        return Manners()

    def check_values(self) -> None:
        """Raise for a value that no job could have."""

    def check_together(self, job: AllSettings) -> None:
        """Raise for settings that do not go together. Called if the job's strategy has settings of this kind."""

    def check_unused(self, strategy: str) -> None:
        """Raise if one of these settings is changed. Called if the job's strategy has no settings of this kind."""
        for name in self.changed():
            raise UsageError(texts.for_another_strategy(self.given(name), name, strategy))

    def changed(self) -> list[str]:
        """Names of the settings that differ from their defaults."""
        usual = type(self)()
        pairs = zip(self.__struct_fields__, self.names(), strict=True)
        return [name for field, name in pairs if getattr(self, field) != getattr(usual, field)]

    def given(self, name: str) -> str:
        """A setting with its value, as a user writes it on a command line."""
        value = getattr(self, name.replace("-", "_"))
        return f"--{name}" if value is True else f"--{name} {value}"


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
