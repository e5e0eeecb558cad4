"""`--on slurm` and its settings `--nodes`, `--time` and `--slurm`: what each may say about an allocation. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from msgspec import Meta

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.engines.engine_settings import EngineKind, EngineSettings
from shoal.settings.kind_settings import AllSettings

MOST_NODES = 10_000
LONGEST = 365 * 24 * 3600  # seconds
UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
PARTS = re.compile(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?")
OPTION = re.compile(r"(--)?[a-z][a-z0-9-]*(=.+)?", re.DOTALL)
NUMBER = "([0-9]{1,6})"
# The forms of Slurm, and what their numbers count.
SLURMS_TIMES = {
    NUMBER: "m",
    f"{NUMBER}:{NUMBER}": "ms",
    f"{NUMBER}:{NUMBER}:{NUMBER}": "hms",
    f"{NUMBER}-{NUMBER}": "dh",
    f"{NUMBER}-{NUMBER}:{NUMBER}": "dhm",
    f"{NUMBER}-{NUMBER}:{NUMBER}:{NUMBER}": "dhms",
}


class SlurmSettings(EngineSettings, frozen=True, kw_only=True, rename="kebab"):
    nodes: Annotated[
        str, Meta(description="with --on slurm: nodes to ask for, N or MIN:MAX; without it the job uses its allocation")
    ] = ""
    time: Annotated[
        str, Meta(description="with --nodes: how long, such as 4h, 30m or 1-12:00:00; default what the cluster allows")
    ] = ""
    slurm: Annotated[
        str, Meta(description='with --nodes: further options of salloc, such as "partition=gpu gpus-per-task=1"')
    ] = ""

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """A number of nodes becomes text; in Python and TOML a user may write it as an integer."""
        return {**given, "nodes": str(given["nodes"])} if type(given.get("nodes")) is int else given

    def check_values(self) -> None:
        if self.nodes:
            node_range(self.nodes)
        if self.time:
            time_limit(self.time)
        salloc_options(self.slurm)

    def check_together(self, job: AllSettings) -> None:  # noqa: ARG002  no other settings matter
        if not self.nodes:
            self._refuse()

    def check_unused(self, chosen: str) -> None:  # noqa: ARG002  whichever it is
        self._refuse()

    def _refuse(self) -> None:
        for name in self.changed():
            raise UsageError(texts.only_with_slurm(name, getattr(self, name)))


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
        for form, units in SLURMS_TIMES.items():
            if match := re.fullmatch(form, text):
                found = sum(int(number) * UNITS[unit] for number, unit in zip(match.groups(), units, strict=True))
    if not 0 < found <= LONGEST:
        raise UsageError(texts.bad_time(text))
    return found


def slurms_time(seconds: int) -> str:
    """As Slurm writes it: days-hours:minutes:seconds."""
    return f"{seconds // 86400}-{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


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


SLURM = EngineKind(
    name="slurm",
    maker="shoal.launching.elsewhere.slurm_jobs:chosen",
    settings=SlurmSettings,
    launcher_moves=True,
    restart_count="SLURM_RESTART_COUNT",
)
