"""Options of `shoal run` that stand behind the script, where the script gets them: a common slip of the hand. Pure.

`shoal run train.py -n 2` would start one worker and hand "-n 2" to the script. That may be meant, where the script has
an option of that name, which its text tells, or where the user writes `--` before the script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.launching.script_source import ScriptSource

WORKERS = "workers"  # the setting without which a job is not the one that was meant
# How scripts name what a parser made of the command line, before a dot and the option's name.
PARSED = r"\b(?:\w*arg\w*|opts?|options|cfg|conf\w*|flags|h?params|parsed)\."


@dataclass(frozen=True)
class KnownOption:
    setting: str
    takes_value: bool


@dataclass(frozen=True)
class OptionBehind:
    """An option of `shoal run` among a script's arguments."""

    name: str  # as it was typed, without its value
    setting: str
    words: tuple[str, ...]  # with its value


def split_arguments(arguments: Sequence[str], known: Mapping[str, KnownOption]) -> tuple[list[OptionBehind], list[str]]:
    """The options of `shoal run` among a script's arguments, up to `--`, and the other arguments."""
    found: list[OptionBehind] = []
    kept: list[str] = []
    words = list(arguments)
    while words and words[0] != "--":
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if re.fullmatch(r"-[a-z][0-9:]+", word):  # -n2
            name, equals = word[:2], "="
        option = known.get(name)
        if option is None:
            kept.append(word)
            continue
        value = [words.pop(0)] if option.takes_value and not equals and words else []
        found.append(OptionBehind(name, option.setting, (word, *value)))
    return found, kept + words


def misplaced(behind: Iterable[OptionBehind], given: Collection[str], source: ScriptSource) -> tuple[OptionBehind, ...]:
    """Those that are most likely meant for `shoal run`. `given`: settings that stand before the script too."""
    doubtful = (option for option in behind if option.setting not in given and not _is_scripts_own(option, source))
    # A script that takes its words from sys.argv itself may mention none of them, but would hardly count workers.
    reads_words = source.mentions(r"\bargv\b")
    return tuple(option for option in doubtful if option.setting == WORKERS or not reads_words)


def _is_scripts_own(option: OptionBehind, source: ScriptSource) -> bool:
    """Whether the script has an option of this name: a quoted one, or a field of what a parser made."""
    field = re.escape(option.setting.replace("-", "_"))
    quoted = rf"[\"']{re.escape(option.name)}(?![\w-])"
    documented = rf"(?s)docopt.*{re.escape(option.name)}(?![\w-])"
    return source.mentions(rf"{quoted}|{PARSED}{field}\b|(?m:^\s+{field}\s*:\s*\w)") or source.mentions(documented)


def in_order(before: Sequence[str], script: str, arguments: Sequence[str], known: Mapping[str, KnownOption]) -> str:
    """The command line with all options of `shoal run` before the script."""
    behind, kept = split_arguments(arguments, known)
    moved = [word for option in behind for word in option.words]
    return shlex.join(("shoal", "run", *before, *moved, script, *kept))
