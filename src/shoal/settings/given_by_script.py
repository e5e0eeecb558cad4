"""Which settings a script may give to `shoal.main`, by how the script was started. Pure.

A script that runs alone starts nothing: it has no other workers, no servers and no coordinator. Under `shoal run` all
of these run already when the script says what it wants, and the command line beats the script. The table says for every
setting what happens then. Settings from installed packages are not in it: those of engines are treated like Shoal's
own, those of strategies get `OTHER`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.kinds import ENGINES, OWN_ENGINES, settings_of
from shoal.settings.parameter_server_settings import PARAMETER_SERVER, ParameterServerSettings

ORIGIN = "shoal.main"  # who gave these settings, in messages
Values = Mapping[str, object]  # settings by name, as on the command line


class Alone(Enum):
    """What becomes of a setting where the script runs alone."""

    HONOURED = auto()
    HARMLESS = auto()  # it is about other processes, of which there are none
    REFUSED = auto()


class InJob(Enum):
    """What becomes of a setting under `shoal run` where the job has another value."""

    TAKEN = auto()  # unless the command line has set it
    HARMLESS = auto()
    TOLD = auto()  # it is not honoured, which one line says, unless the command line has set it
    NEEDED = auto()  # refused, unless the command line has set it: the job would be another one
    FIXED = auto()  # refused, whatever the command line says


@dataclass(frozen=True)
class Treatment:
    alone: Alone
    in_job: InJob


OTHER = Treatment(Alone.HONOURED, InJob.NEEDED)
_STARTED = Treatment(Alone.REFUSED, InJob.FIXED)
_BETWEEN_PROCESSES = Treatment(Alone.HARMLESS, InJob.NEEDED)
_TRAINING = Treatment(Alone.HONOURED, InJob.TAKEN)
_PLACE = Treatment(Alone.HONOURED, InJob.TOLD)

TREATMENTS: Mapping[str, Treatment] = {
    **dict.fromkeys(
        ("workers", "min-workers", "spares", "on", "strategy", "chaos"),
        _STARTED,
    ),
    **{name: _STARTED for kind in settings_of(OWN_ENGINES.values()) for name in kind.names()},
    **dict.fromkeys(ParameterServerSettings.names(), _STARTED),
    **dict.fromkeys(
        ("address", "plaintext", "heartbeat-limit", "hang-limit", "lease", "max-failures"), _BETWEEN_PROCESSES
    ),
    **dict.fromkeys(("schedule", "deterministic", "carrier", "bucket-mb", "codec"), _BETWEEN_PROCESSES),
    **dict.fromkeys(("seed", "sync-batchnorm", "threads", "checkpoint-every"), _TRAINING),
    **dict.fromkeys(("resize", "digest-every"), Treatment(Alone.HARMLESS, InJob.TAKEN)),
    **dict.fromkeys(("run-dir", "checkpoint-to", "keep-checkpoints", "open"), _PLACE),
    "resume": Treatment(Alone.HONOURED, InJob.NEEDED),
    "progress": Treatment(Alone.HONOURED, InJob.HARMLESS),
}


def treatment_of(name: str) -> Treatment:
    if (known := TREATMENTS.get(name)) is not None:
        return known
    return _STARTED if any(name in kind.names() for kind in settings_of(ENGINES.beside_own())) else OTHER


def check_alone(wanted: Values, usual: Values, *, script: str) -> None:
    """Refuse settings that a script which runs alone cannot honour. `usual`: the defaults."""
    refused = {
        name: value
        for name, value in wanted.items()
        if treatment_of(name).alone is Alone.REFUSED and value != usual.get(name) and not _is_fine_alone(name, value)
    }
    if not refused:
        return
    options = dict(refused)
    if options.keys() & set(ParameterServerSettings.names()):
        options = {"strategy": PARAMETER_SERVER.name, **options}
    command = f"shoal run {' '.join(map(as_option, options.items()))} {shlex.quote(script)}"
    raise UsageError(texts.not_alone(_in_python(refused.items()), command))


def _is_fine_alone(name: str, value: object) -> bool:
    """Strategies of installed packages work with one worker; the parameter server needs servers."""
    return name == "strategy" and value != PARAMETER_SERVER.name


@dataclass
class TakenOver:
    """What a running job makes of a script's settings."""

    values: dict[str, object] = field(default_factory=dict)  # that the job takes over
    told: list[str] = field(default_factory=list)  # a line for each that it does not honour


def in_job(wanted: Values, job: Values, given: Collection[str], *, script: str) -> TakenOver:
    """`job`: the settings of the job. `given`: the names of those that whoever started the job has set."""
    taken = TakenOver()
    given = {*given, *(("run-dir",) if "resume" in given else ())}  # a resumed job goes on in its run directory
    for name, value in wanted.items():
        treatment = treatment_of(name).in_job
        if value == job.get(name) or treatment is InJob.HARMLESS or (name in given and treatment is not InJob.FIXED):
            continue
        said, has = _in_python([(name, value)]), _in_python([(name, job.get(name))])
        command = f"shoal run {as_option((name, value))} {shlex.quote(script)}"
        if treatment is InJob.TAKEN:
            taken.values[name] = value
        elif treatment is InJob.TOLD:
            taken.told.append(texts.not_honoured(said, has, command))
        elif name == "resume":
            raise UsageError(texts.resume_in_job(said, command))
        else:
            raise UsageError(texts.not_of_this_job(said, has, command))
    return taken


def as_option(setting: tuple[str, object]) -> str:
    """A setting as a user writes it on a command line."""
    name, value = setting
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"-n {value}" if name == "workers" else f"--{name} {shlex.quote(str(value))}"


def _in_python(settings: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{name.replace('-', '_')}={value!r}" for name, value in settings)
