"""What a user may set about a job: one flat set of names for Python, the command line and TOML files.

`workers` in Python is `--workers` on the command line and `workers` in a file; `run_dir` is `--run-dir` and `run-dir`.
This module checks each value once and answers an unknown name with the nearest known one. Not here: settings that only
some strategies or engines have (`settings` declares and checks them); when it is checked that settings go together
(`disk.settings_merge` has it done once the file and the command line are merged); what users are told about mistakes
(`settings.texts`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from shoal import files
from shoal.environment import parse_address
from shoal.errors import UsageError
from shoal.manners import Manners
from shoal.settings import texts
from shoal.settings.engines.engine_settings import LOCAL, EngineKind, EngineSettings
from shoal.settings.kind_settings import Kind, KindSettings
from shoal.settings.kinds import ENGINES, OWN_ENGINES, OWN_SETTINGS, OWN_STRATEGIES, STRATEGIES, settings_of
from shoal.settings.setting_checks import MOST_LOCAL, nearest, one_of
from shoal.settings.strategy_settings import StrategySettings

RESIZES = ("global-batch", "worker-batch", "worker-batch-and-lr")
PROGRESS = ("auto", "live", "plain", "none")
MOST_WORKERS = 10_000  # of a job
NO_SETTINGS = ("strategy-settings", "engine-settings", "given")  # fields of `JobConfig`


class JobConfig(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The settings of one job: those that every job has, and those of strategies and engines."""

    workers: Annotated[int, Meta(description="number of worker processes (-n); MIN:MAX sets --min-workers too")] = 1
    min_workers: Annotated[
        int, Meta(description="the job waits while it has fewer workers; 0: start with all, go on with any number")
    ] = 0
    spares: Annotated[int, Meta(description="processes kept ready, with torch imported, to replace lost workers")] = 0
    on: Annotated[
        str, Meta(description="where workers and servers run: local (here), ssh (--hosts), slurm, ray, spark or dask")
    ] = LOCAL
    resize: Annotated[
        str,
        Meta(
            description="what to keep constant when the number of workers changes: global-batch, worker-batch or "
            "worker-batch-and-lr"
        ),
    ] = "global-batch"
    strategy: Annotated[
        str, Meta(description="how replicas agree: all-reduce, parameter-server, or a strategy of an installed package")
    ] = "all-reduce"
    seed: Annotated[int, Meta(description="seed of the sample order and of every step's random generators")] = 0
    sync_batchnorm: Annotated[bool, Meta(description="BatchNorm statistics over the samples of all workers")] = False
    threads: Annotated[int, Meta(description="torch threads per worker; 0 divides the cores evenly")] = 0
    address: Annotated[str, Meta(description="where the coordinator listens, HOST:PORT; port 0: any free port")] = (
        "127.0.0.1:0"
    )
    plaintext: Annotated[
        bool, Meta(description="do not encrypt connections to other machines; for networks that you trust")
    ] = False
    heartbeat_limit: Annotated[float, Meta(description="seconds of silence after which a worker counts as lost")] = 5.0
    hang_limit: Annotated[
        float, Meta(description="seconds without a step, while others wait, after which a worker is expelled")
    ] = 600.0
    lease: Annotated[float, Meta(description="seconds that workers go on training without the coordinator")] = 60.0
    max_failures: Annotated[int, Meta(description="identical failures of the script after which the job stops")] = 3
    digest_every: Annotated[
        int, Meta(description="steps between two comparisons of all workers' parameters; 0: never")
    ] = 100
    chaos: Annotated[str, Meta(description='faults on purpose, such as "kill worker every 15s"')] = ""
    checkpoint_every: Annotated[
        str, Meta(description="steps such as 200, seconds such as 30s, end (when the job ends or is stopped) or never")
    ] = "end"
    checkpoint_to: Annotated[str, Meta(description="folder or fsspec URL; default the run directory")] = ""
    keep_checkpoints: Annotated[int, Meta(description="newest checkpoints to keep, besides marked ones")] = 3
    resume: Annotated[str, Meta(description="run directory of a job to go on with")] = ""
    run_dir: Annotated[str, Meta(description="folder for the job's record; default runs/TIME-SCRIPT")] = ""
    progress: Annotated[str, Meta(description="auto, live, plain or none")] = "auto"
    open: Annotated[bool, Meta(description="open the report in a browser when the job ends")] = False
    strategy_settings: tuple[StrategySettings, ...] = ()  # no setting by itself; kinds with all defaults are left out
    engine_settings: tuple[EngineSettings, ...] = ()  # the same
    given: tuple[str, ...] = ()  # no setting by itself: names that the command line, a file or a caller has set

    def validate(self) -> Self:
        """Raise a UsageError that names the option, its value and the values it may have."""
        if not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(texts.bad_workers(self.workers, MOST_WORKERS))
        if not 0 <= self.min_workers <= self.workers:
            raise UsageError(texts.bad_min_workers(self.min_workers, self.workers))
        if not 0 <= self.spares <= MOST_LOCAL:
            raise UsageError(texts.out_of_range("spares", self.spares, 0, MOST_LOCAL))
        ENGINES.named(self.on)
        one_of("resize", self.resize, RESIZES)
        STRATEGIES.named(self.strategy)
        one_of("progress", self.progress, PROGRESS)
        if not 0 <= self.seed < 2**63:
            raise UsageError(texts.bad_seed(self.seed))
        if self.threads < 0:
            raise UsageError(texts.bad_threads(self.threads))
        if not 0.5 <= self.heartbeat_limit <= 3600:
            raise UsageError(texts.out_of_range("heartbeat-limit", self.heartbeat_limit, 0.5, 3600, "seconds"))
        if not 1 <= self.hang_limit <= 86400:
            raise UsageError(texts.out_of_range("hang-limit", self.hang_limit, 1, 86400, "seconds"))
        if not 1 <= self.lease <= 3600:
            raise UsageError(texts.out_of_range("lease", self.lease, 1, 3600, "seconds"))
        if not 1 <= self.max_failures <= 1000:
            raise UsageError(texts.out_of_range("max-failures", self.max_failures, 1, 1000))
        if not 0 <= self.digest_every <= 10**9:
            raise UsageError(texts.bad_digest_every(self.digest_every))
        if not 1 <= self.keep_checkpoints <= 1_000_000:
            raise UsageError(texts.out_of_range("keep-checkpoints", self.keep_checkpoints, 1, 1_000_000))
        parse_address(self.address, named="--address")
        _ = self.checkpoints
        for settings in (*self.engine_settings, *self.strategy_settings):
            settings.check_values()
        return self

    def check_together(self) -> Self:
        """Raise a UsageError for settings that do not go together. All of them must be known by now."""
        strategy = STRATEGIES.named(self.strategy)
        has = settings_of([self.engine, strategy])
        for one in (each for each in self.engine_settings if type(each) not in has):
            one.check_unused(self.on)
        for other in (each for each in self.strategy_settings if type(each) not in has):
            other.check_unused(self.strategy)
        for kind in has:
            self.of(kind).check_together(self)
        return self

    def of(self, kind: type[Kind]) -> Kind:
        """The settings of one kind, all defaults if the user has changed none of them."""
        every = (*self.engine_settings, *self.strategy_settings)
        return next((settings for settings in every if isinstance(settings, kind)), kind())

    def having(self, settings: EngineSettings) -> Self:
        """The same job with these settings of an engine."""
        others = (each for each in self.engine_settings if type(each) is not type(settings))
        return msgspec.structs.replace(self, engine_settings=(*others, settings))

    def has(self, kind: type[StrategySettings]) -> bool:
        """Whether the job's strategy has settings of this kind."""
        return kind in STRATEGIES.named(self.strategy).all_settings

    @property
    def engine(self) -> EngineKind:
        """What the chosen engine declares about itself."""
        return ENGINES.named(self.on)

    @property
    def manners(self) -> Manners:
        """The manners of the chosen strategy, without loading it."""
        return self.of(STRATEGIES.named(self.strategy).settings).manners

    @property
    def absence_limit(self) -> float:
        """Seconds that workers go on training without hearing from the coordinator: the option `--lease`."""
        return self.lease

    @property
    def fewest(self) -> int:
        """The fewest workers with which a job that has begun goes on; with fewer it waits."""
        return max(1, self.min_workers)

    @property
    def checkpoints(self) -> CheckpointRhythm:
        return checkpoint_rhythm(self.checkpoint_every)

    def to_toml(self) -> str:
        """Every setting, so that a file written today means the same after a default has changed. No secrets."""
        values = self.values()
        for settings in (*self.engine_settings, *self.strategy_settings):
            values |= {name: value for name, value in settings.recorded().items() if name in values}
        return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())

    def values(self) -> dict[str, object]:
        """Every setting by name, including settings of Shoal's own strategies and engines that are not chosen."""
        values: dict[str, object] = {}
        for name, value in msgspec.to_builtins(self).items():
            if name not in NO_SETTINGS:
                values[name] = value
            if name == "on":
                values |= self._values_of(settings_of([*OWN_ENGINES.values(), self.engine]))
        return values | self._values_of(settings_of([*OWN_STRATEGIES.values(), STRATEGIES.named(self.strategy)]))

    def _values_of(self, kinds: Iterable[type[KindSettings]]) -> dict[str, object]:
        return {name: value for kind in kinds for name, value in msgspec.to_builtins(self.of(kind)).items()}


@dataclass(frozen=True)
class CheckpointRhythm:
    """When a job makes checkpoints."""

    steps: int | None = None  # from one checkpoint to the next, counted in applied steps
    seconds: float | None = None  # from the start of one checkpoint to the start of the next
    at_end: bool = True  # make one when the job ends or is stopped


def checkpoint_rhythm(text: str) -> CheckpointRhythm:
    if text == "end":
        return CheckpointRhythm()
    if text == "never":
        return CheckpointRhythm(at_end=False)
    if re.fullmatch(r"[0-9]{1,12}", text) and int(text) > 0:
        return CheckpointRhythm(steps=int(text))
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?s", text) and float(text[:-1]) > 0:
        return CheckpointRhythm(seconds=float(text[:-1]))
    raise UsageError(texts.bad_checkpoint_every(text))


def _toml(value: object) -> str:
    """JSON's numbers, booleans and strings are valid TOML, except that TOML wants the character 0x7f escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def common_names() -> tuple[str, ...]:
    """Names, on the command line and in files, of the settings that every job has."""
    return tuple(name for name in JobConfig.__struct_encode_fields__ if name not in NO_SETTINGS)


def kinds_for(values: Mapping[str, Any]) -> tuple[type[KindSettings], ...]:
    """The kinds of settings among these values. Packages are asked only for names that Shoal does not have."""
    kinds = OWN_SETTINGS
    for table in (ENGINES, STRATEGIES):
        if isinstance(chosen := values.get(table.option), str) and chosen not in table.own:
            found = settings_of([table.named(chosen)])
            for name in (name for kind in found if kind not in OWN_SETTINGS for name in kind.names()):
                if (owner := _owner(name, kinds)) is not None:
                    raise UsageError(texts.setting_taken(table.word, chosen, name, owner))
            kinds += found
    known = {*common_names(), *(name for settings in kinds for name in settings.names())}
    if not values.keys() <= known:
        kinds += settings_of([*ENGINES.beside_own(), *STRATEGIES.beside_own()])
    return tuple(dict.fromkeys(kinds))


def _owner(name: str, kinds: Iterable[type[KindSettings]]) -> str | None:
    """The class that has a setting of this name."""
    if name in common_names():
        return JobConfig.__name__
    return next((kind.__name__ for kind in kinds if name in kind.names()), None)


def from_mapping(values: Mapping[str, Any], *, origin: str) -> JobConfig:
    """Make the settings from plain values, names in either spelling. Errors name `origin`, the source of the values."""
    renamed = {name.replace("_", "-"): value for name, value in values.items()}
    if len(renamed) < len(values):
        twice = next(name for name in values if name.replace("_", "-") in values and "_" in name)
        raise UsageError(texts.set_twice(origin, twice))
    kinds = kinds_for(renamed)
    known = (*common_names(), *(name for kind in kinds for name in kind.names()))
    for name in renamed:
        if name not in known:
            raise UsageError(texts.no_setting(origin, name, nearest(name, known)))
    if isinstance(workers := renamed.get("workers"), str):
        renamed |= _workers_range(workers)
    if type(steps := renamed.get("checkpoint-every")) is int:  # in Python and TOML a user may write an integer
        renamed["checkpoint-every"] = str(steps)
    try:
        particular = tuple(_settings_in(renamed, kind) for kind in kinds)
        common = msgspec.convert({name: renamed[name] for name in renamed if name in common_names()}, JobConfig)
    except msgspec.ValidationError as error:
        raise UsageError(texts.wrong_type(origin, _plainly(str(error)))) from None
    unusual = [settings for settings in particular if settings.changed()]
    return msgspec.structs.replace(
        common,
        strategy_settings=tuple(settings for settings in unusual if isinstance(settings, StrategySettings)),
        engine_settings=tuple(settings for settings in unusual if isinstance(settings, EngineSettings)),
    ).validate()


def _settings_in(values: Mapping[str, Any], kind: type[KindSettings]) -> KindSettings:
    given = {name: value for name, value in values.items() if name in kind.names()}
    return msgspec.convert(kind.completed(given), kind)


def _workers_range(text: str) -> dict[str, int]:
    """The settings that `4` or `2:8` stands for."""
    if not re.fullmatch(r"[0-9]{1,6}(:[0-9]{1,6})?", text):
        raise UsageError(texts.bad_workers_range(text))
    fewest, colon, most = text.rpartition(":")
    return {"workers": int(most)} | ({"min-workers": int(fewest)} if colon else {})


def _plainly(error: str) -> str:
    """Rewrite msgspec's message, such as: Expected `int`, got `str` - at `$.seed`, to: seed: Expected int, got str."""
    what, _, where = error.partition(" - at `$.")
    return f"{where.rstrip('`')}: {what.replace('`', '')}" if where else what


def read_toml(path: Path, *, may_be_pipe: bool = False) -> dict[str, Any]:
    """The settings in a file, not yet checked. A file that the user names may be a pipe, such as a shell's <(...)."""
    try:
        return files.toml_of(path.read_text(encoding="utf-8")) if may_be_pipe else files.read_toml(path)
    except FileNotFoundError:
        raise UsageError(texts.config_missing(path)) from None
    except OSError as error:
        raise UsageError(texts.config_unreadable(path, error.strerror)) from None
    except ValueError as error:
        raise UsageError(texts.config_not_toml(path, error)) from None


def from_toml(text: str, *, origin: str) -> JobConfig:
    try:
        mapping = files.toml_of(text)
    except ValueError as error:
        raise UsageError(texts.not_toml(origin, error)) from None
    return from_mapping(mapping, origin=origin)
