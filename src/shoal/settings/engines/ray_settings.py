"""`--on ray` and its setting `--ray`: what each worker gets in a Ray cluster, and how long to wait for it. Pure."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.engines.engine_settings import EngineKind, EngineSettings
from shoal.settings.engines.slurm_settings import time_limit

CPUS, GPUS, MEMORY, WAIT = "cpus", "gpus", "memory", "wait"
NAMES = {CPUS: "CPU", GPUS: "GPU"}  # as Ray has them; those of other resources are the user's
WORD = re.compile(r"([A-Za-z_][\w.:/-]{0,99})=([0-9A-Za-z.:-]{1,32})")
NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,4})?")
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,4})?)([KMGT]?)")
USUAL_WAIT = 60.0  # seconds


class RaySettings(EngineSettings, frozen=True, kw_only=True, rename="kebab"):
    ray: Annotated[
        str, Meta(description='with --on ray: what each worker gets, such as "cpus=2 gpus=1 memory=8G wait=10m"')
    ] = ""

    def check_values(self) -> None:
        ray_wish(self.ray)

    def check_unused(self, chosen: str) -> None:  # noqa: ARG002  whichever it is
        if self.ray:
            raise UsageError(texts.only_with_ray(self.ray))


@dataclass(frozen=True)
class RayWish:
    bundle: dict[str, float]  # what each worker gets, in Ray's names; memory in bytes
    wait: float = USUAL_WAIT  # seconds until there must be room for the first workers


def ray_wish(text: str, *, threads: int = 0) -> RayWish:
    """`cpus=2 gpus=1 memory=8G wait=10m`, and any resource that the cluster has. Without cpus, as many as threads."""
    found: dict[str, float] = {NAMES[CPUS]: float(max(1, threads))}
    wait = USUAL_WAIT
    for word in _words(text):
        match = WORD.fullmatch(word)
        if match is None:
            raise UsageError(texts.bad_ray_wish(text, f"{word!r} is no name with its value"))
        name, value = match[1], match[2]
        if name == WAIT:
            wait = float(time_limit(value))
        elif name == MEMORY:
            found[MEMORY] = _bytes(text, value)
        else:
            found[NAMES.get(name, name)] = _number(text, name, value)
    return RayWish({name: number for name, number in found.items() if number}, wait)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(texts.bad_ray_wish(text, str(error))) from None


def _number(text: str, name: str, value: str) -> float:
    if not NUMBER.fullmatch(value):
        raise UsageError(texts.bad_ray_wish(text, f"{name} is {value!r}, which is no number"))
    number = float(value)
    if number > 1 and number != math.floor(number):
        raise UsageError(texts.bad_ray_wish(text, f"{name} is {value}: beyond 1, Ray gives whole numbers"))
    return number


def _bytes(text: str, value: str) -> float:
    match = SIZE.fullmatch(value)
    if match is None:
        raise UsageError(texts.bad_ray_wish(text, f"memory is {value!r}, which is no size"))
    return float(math.ceil(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")))


RAY = EngineKind(
    name="ray",
    maker="shoal.launching.elsewhere.ray_jobs:chosen",
    settings=RaySettings,
    package="ray",
    requirement="shoal[ray]",
)
