"""What the settings of strategies and of engines have in common: a struct each, by whose names users set them. Pure.

Not here: which kinds of settings there are (`kind_table`), and settings that every job has (`job_config`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

Kind = TypeVar("Kind", bound="KindSettings")


class AllSettings(Protocol):
    """All settings of one job."""

    def of(self, kind: type[Kind]) -> Kind:
        """The settings of one kind."""
        ...


class KindSettings(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Settings that some jobs have. Each field has a default, and a description for `--help`.

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

    def check_values(self) -> None:
        """Raise for a value that no job could have."""

    def check_together(self, job: AllSettings) -> None:
        """Raise for settings that do not go together. Called if the job's strategy or engine has these settings."""

    def check_unused(self, chosen: str) -> None:
        """Raise if one of these settings is changed. Called if the job has chosen another strategy, or engine."""

    def recorded(self) -> dict[str, Any]:
        """These settings by name, as the job's record and its workers see them: without secrets."""
        return dict(msgspec.to_builtins(self))

    def changed(self) -> list[str]:
        """Names of the settings that differ from their defaults."""
        usual = type(self)()
        pairs = zip(self.__struct_fields__, self.names(), strict=True)
        return [name for field, name in pairs if getattr(self, field) != getattr(usual, field)]

    def given(self, name: str) -> str:
        """A setting with its value, as a user writes it on a command line."""
        value = getattr(self, name.replace("-", "_"))
        return f"--{name}" if value is True else f"--{name} {value}"
