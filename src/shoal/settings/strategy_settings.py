"""What a strategy declares about itself without being loaded: its name, its settings, its manners. The interface.

Launcher, command line and coordinator know a strategy by this alone, so that none of them waits for torch. Not here:
which strategies there are (`strategy_kinds`), and what each does (`strategies`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from shoal.errors import UsageError
from shoal.manners import Manners

Kind = TypeVar("Kind", bound="StrategySettings")


class AllSettings(Protocol):
    """All settings of one job."""

    def of(self, kind: type[Kind]) -> Kind:
        """Those of one kind."""
        ...


class StrategySettings(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Settings that some strategies have. Each field has a default, and a description for `--help`.

    A mistake is a `UsageError` that names the setting, its value and the nearest that works. No two kinds of settings
    have a name in common: users type it without saying whose it is.
    """

    title: ClassVar[str] = ""  # of their group in `--help`

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """As the command line and files have them."""
        return cls.__struct_encode_fields__

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """What was given, by name, with numbers as text where a setting is text, and with what it implies."""
        return given

    @property
    def manners(self) -> Manners:
        """What a strategy with these settings is like. Asked of a strategy's own settings alone."""
        return Manners()

    def check_values(self) -> None:
        """Raise for a value that no job could have."""

    def check_together(self, job: AllSettings) -> None:
        """Raise for settings that do not go together, where the job's strategy has these."""

    def check_unused(self, strategy: str) -> None:
        """Raise where one of these is set, and the job's strategy does not have them."""
        for name in self.changed():
            raise UsageError(f"{self.given(name)} is for another strategy than {strategy}; leave --{name} out")

    def changed(self) -> list[str]:
        """Names of those that are not as they usually are."""
        usual = type(self)()
        pairs = zip(self.__struct_fields__, self.names(), strict=True)
        return [name for field, name in pairs if getattr(self, field) != getattr(usual, field)]

    def given(self, name: str) -> str:
        """A setting as one writes it on a command line."""
        value = getattr(self, name.replace("-", "_"))
        return f"--{name}" if value is True else f"--{name} {value}"


@dataclass(frozen=True)
class StrategyKind:
    """A strategy as a package offers it, and as Shoal has its own."""

    name: str  # as in `--strategy`
    settings: type[StrategySettings]  # its own, which say its manners
    maker: str  # MODULE:FUNCTION that makes one, a `strategies.choosing.Maker`; only workers import it
    shares: tuple[type[StrategySettings], ...] = ()  # settings that it has in common with other strategies

    @property
    def all_settings(self) -> tuple[type[StrategySettings], ...]:
        return (self.settings, *self.shares)
