"""What `--nodes`, `--time` and `--slurm` may say: the numbers of nodes, the time and the options of an allocation."""

from __future__ import annotations

import re
import shlex

from shoal.errors import UsageError
from shoal.settings import texts

MOST_NODES = 10_000
LONGEST = 365 * 24 * 3600  # seconds
UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
PARTS = re.compile(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?")
OPTION = re.compile(r"(--)?[a-z][a-z0-9-]*(=.+)?", re.DOTALL)
NUMBER = "([0-9]{1,6})"
# The forms of Slurm, and what their numbers count.
SLURM = {
    NUMBER: "m",
    f"{NUMBER}:{NUMBER}": "ms",
    f"{NUMBER}:{NUMBER}:{NUMBER}": "hms",
    f"{NUMBER}-{NUMBER}": "dh",
    f"{NUMBER}-{NUMBER}:{NUMBER}": "dhm",
    f"{NUMBER}-{NUMBER}:{NUMBER}:{NUMBER}": "dhms",
}


def node_range(text: str) -> tuple[int, int]:
    """The fewest and the most nodes that `4` or `2:8` stands for."""
    match = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]) <= MOST_NODES:
        raise UsageError(texts.bad_nodes(text, MOST_NODES))
    return int(match[1]), int(match[2] or match[1])


def time_limit(text: str) -> int:
    """Seconds of `4h`, `1h30m` or one of Slurm's forms, such as `30` (minutes), `4:00:00` or `1-12`."""
    found = 0
    if match := PARTS.fullmatch(text):
        found = sum(int(number or 0) * unit for number, unit in zip(match.groups(), UNITS.values(), strict=True))
    else:
        for form, units in SLURM.items():
            if match := re.fullmatch(form, text):
                found = sum(int(number) * UNITS[unit] for number, unit in zip(match.groups(), units, strict=True))
    if not 0 < found <= LONGEST:
        raise UsageError(texts.bad_time(text))
    return found


def slurms_time(seconds: int) -> str:
    """As Slurm writes it: days-hours:minutes:seconds."""
    return f"{seconds // 86400}-{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def check_wishes(nodes: str, time: str, options: str) -> None:
    """Empty: not given."""
    if nodes:
        node_range(nodes)
    if time:
        time_limit(time)
    salloc_options(options)


def salloc_options(text: str) -> tuple[str, ...]:
    """Words such as `partition=gpu`, as a shell would split them, each with the dashes of an option."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(texts.bad_slurm_options(text, str(error))) from None
    for word in words:
        if not OPTION.fullmatch(word):
            raise UsageError(texts.bad_slurm_options(text, f"{word!r} is no option with its value"))
    return tuple(f"--{word.removeprefix('--')}" for word in words)
