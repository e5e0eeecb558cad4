"""Command line options, generated from the fields of settings, so that names and defaults are the same everywhere.

Covers parsing and the merge with a TOML file: the command line beats the file. Errors are one `UsageError` each, which
names the option and, for an unknown one, the nearest that exists. Not here: what the values mean (`job_config`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import msgspec

from shoal.cli import texts
from shoal.disk.settings_merge import merge
from shoal.errors import UsageError
from shoal.job_config import NO_SETTINGS, JobConfig
from shoal.settings.kind_settings import KindSettings
from shoal.settings.kinds import ENGINES, OWN_ENGINES, OWN_SETTINGS, OWN_STRATEGIES, STRATEGIES, settings_of

# The order of groups in --help, and which settings each holds. Those of strategies come after the group `training`.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "processes": (
        "workers",
        "min-workers",
        "spares",
        "threads",
        "on",
        *(name for kind in settings_of(OWN_ENGINES.values()) for name in kind.names()),
    ),
    "training": ("resize", "strategy", "seed", "sync-batchnorm", "digest-every"),
    "coordinator": ("address", "plaintext", "heartbeat-limit", "hang-limit", "lease", "max-failures"),
    "faults on purpose": ("chaos",),
    "checkpoints": ("checkpoint-every", "checkpoint-to", "keep-checkpoints", "resume"),
    "record and output": ("run-dir", "progress", "open"),
}
SHORT = {"workers": "-n"}
RANGES = ("workers",)  # whole numbers that may also be given as MIN:MAX, which `job_config` reads
KINDS: Mapping[type, tuple[type, str]] = {
    msgspec.inspect.IntType: (int, "a whole number"),
    msgspec.inspect.FloatType: (float, "a number"),
    msgspec.inspect.StrType: (str, "text"),
    msgspec.inspect.BoolType: (bool, "a switch"),
}


@dataclass(frozen=True)
class Setting:
    """One field of `JobConfig`, or of the settings of a strategy or an engine, as an option."""

    name: str  # as in a file; the option is --name
    kind: type
    kind_text: str
    default: object
    description: str


def settings() -> dict[str, Setting]:
    """By name: those of every job, then those of Shoal's own engines and strategies."""
    found = settings_in(JobConfig)
    for kind in OWN_SETTINGS:
        found |= settings_in(kind)
    return found


def settings_in(kind: type[msgspec.Struct]) -> dict[str, Setting]:
    """By name, in the order of the fields."""
    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.StructType)
    found = {}
    for field in described.fields:
        if field.encode_name in NO_SETTINGS:
            continue
        assert isinstance(field.type, msgspec.inspect.Metadata), f"{field.name} needs a description"
        python_kind, text = KINDS[type(field.type.type)]
        description = (field.type.extra_json_schema or {}).get("description", "")
        found[field.encode_name] = Setting(field.encode_name, python_kind, text, field.default, description)
    return found


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of ending the process, and takes no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._more: list[Callable[[], None]] = []

    def later(self, add_more: Callable[[], None]) -> None:
        """`add_more` is called where help is asked for, or an option is not known: it adds options that take time."""
        self._more.append(add_more)

    def _add_more(self) -> bool:
        more, self._more = self._more, []
        for add in more:
            add()
        return bool(more)

    def format_help(self) -> str:
        self._add_more()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(texts.see_help(message, self.prog))

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Like `parse_args`, but an unknown option is answered with the nearest known one."""
        # argparse takes an unknown option with a space in it, such as --name="a b", for the script's name.
        if any(word.startswith("--") and " " in word and not self._knows(word) for word in arguments):
            self._add_more()
        parsed, unknown = self.parse_known_args(arguments)
        if unknown and self._add_more():
            parsed, unknown = self.parse_known_args(arguments)
        if unknown:
            name = unknown[0].partition("=")[0]
            known = tuple(option for action in self._actions for option in action.option_strings)
            raise UsageError(texts.no_such_option(name, known, self.prog))
        return parsed

    def _knows(self, word: str) -> bool:
        return word.partition("=")[0] in self._option_string_actions


class Once(argparse.Action):
    """Stores a value, and refuses a second one that differs."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  argparse's signature
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        value: Any = values
        if self.nargs == 0:
            value = not str(option_string).startswith("--no-")
        if hasattr(namespace, self.dest) and (before := getattr(namespace, self.dest)) != value:
            if self.nargs == 0:
                raise UsageError(texts.switched_on_and_off(self.dest))
            raise UsageError(texts.given_twice(self.dest, before, value))
        setattr(namespace, self.dest, value)


def add_settings(parser: Parser) -> None:
    """Every setting, in its group, and --config. Those of installed packages are added where they are asked for."""
    known = settings()
    offered: set[str] = set()

    def add_those_of(kinds: Iterable[type[KindSettings]]) -> None:
        groups: dict[str, argparse._ArgumentGroup] = {}
        for kind in kinds:
            if kind.title not in groups:
                groups[kind.title] = parser.add_argument_group(kind.title)
            for setting in settings_in(kind).values():
                if setting.name not in offered:  # else `kinds_for` refuses this kind where it is chosen
                    _add(groups[kind.title], setting)
                    offered.add(setting.name)

    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add(group, known[name])
            offered.add(name)
        if title == "training":
            add_those_of(settings_of(OWN_STRATEGIES.values()))
    parser.add_argument(
        "--config", action=Once, default=argparse.SUPPRESS, metavar="FILE", help="settings from a TOML file"
    )

    def add_those_of_packages() -> None:
        found = settings_of([*ENGINES.beside_own(), *STRATEGIES.beside_own()])
        add_those_of(kind for kind in found if kind not in OWN_SETTINGS)

    parser.later(add_those_of_packages)
    parser.set_defaults(offered=offered)


def _add(group: argparse._ArgumentGroup, setting: Setting) -> None:
    text = setting.description.replace("%", "%%")
    shared: dict[str, Any] = {"action": Once, "dest": setting.name, "default": argparse.SUPPRESS}
    if setting.kind is bool:
        flags = (f"--{setting.name}", f"--no-{setting.name}")
        group.add_argument(*flags, nargs=0, help=f"{text} (default: {'on' if setting.default else 'off'})", **shared)
        return
    flags = (*((SHORT[setting.name],) if setting.name in SHORT else ()), f"--{setting.name}")
    metavar = "N" if setting.kind is int else "X" if setting.kind is float else setting.name.upper()
    metavar = "[MIN:]N" if setting.name in RANGES else metavar
    shown = "" if setting.default == "" else f" (default: {setting.default})"
    group.add_argument(*flags, type=_reader(setting), metavar=metavar, help=text + shown, **shared)


def _reader(setting: Setting) -> Any:
    def read(text: str) -> object:
        try:
            return setting.kind(text)
        except ValueError:
            if setting.name in RANGES:
                return text
            raise UsageError(texts.wrong_kind(setting.name, text, setting.kind_text)) from None

    return read


def config_from(parsed: argparse.Namespace, base: Mapping[str, Any] = MappingProxyType({})) -> JobConfig:
    """The job's settings: the command line's, then the file's, then those of `base`, then the defaults."""
    given = {name: value for name, value in vars(parsed).items() if name in parsed.offered}
    return merge(given, file=getattr(parsed, "config", None), origin="the command line", base=base)
