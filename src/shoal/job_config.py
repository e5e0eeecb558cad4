"""What a user may set about a job: one flat set of names for Python, the command line and TOML files.

`workers` in Python is `--workers` on the command line and `workers` in a file; `run_dir` is `--run-dir` and `run-dir`.
Values are checked once, here; an unknown name is answered with the nearest known one. Not here: settings that one
strategy alone has, which are declared and checked by themselves (`settings`), and which settings go with the strategy
that is chosen (`launching.strategy_settings`), as they may come from a file and a command line.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from shoal import files
from shoal.environment import parse_address
from shoal.errors import UsageError
from shoal.manners import Manners
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.settings.setting_checks import MOST_LOCAL, nearest, one_of

STRATEGIES = ("all-reduce", "parameter-server")
SCHEDULES = ("auto", "ring", "tree", "double-tree", "halving-doubling", "hierarchical")
CODECS = ("identity",)  # Shoal's own; installed packages may offer others
CODEC_GROUP = "shoal.codecs"  # of the entry points by which they do
CARRIERS = ("shoal", "gloo", "nccl", "mpi")
RESIZES = ("global-batch", "worker-batch", "worker-batch-and-lr")
PROGRESS = ("auto", "live", "plain", "none")


MOST_WORKERS = 10_000  # of a job
NUMBERS_IN_TEXT = ("checkpoint-every", "servers", "staleness")  # the plainest way to write them in Python and TOML


class JobConfig(ParameterServerSettings, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The settings of one job: those of all strategies, declared beside each other in `settings`, and these."""

    workers: Annotated[int, Meta(description="number of worker processes (-n); MIN:MAX sets --min-workers too")] = 1
    min_workers: Annotated[
        int, Meta(description="the job waits while there are fewer; 0: all to begin with, then any number")
    ] = 0
    spares: Annotated[int, Meta(description="processes kept ready, with torch imported, to replace lost workers")] = 0
    resize: Annotated[
        str, Meta(description="what stays when workers come and go: global-batch, worker-batch or worker-batch-and-lr")
    ] = "global-batch"
    strategy: Annotated[str, Meta(description="how replicas agree: all-reduce or parameter-server")] = "all-reduce"
    schedule: Annotated[
        str,
        Meta(
            description="who sends what to whom: auto (as the measured links have it), ring, tree, double-tree, "
            "halving-doubling or hierarchical"
        ),
    ] = "auto"
    deterministic: Annotated[
        bool, Meta(description="what auto takes follows from sizes alone, by a fixed table, and no link is measured")
    ] = False
    codec: Annotated[
        str,
        Meta(description="how tensors cross hosts, to servers too: identity, or a codec of an installed package"),
    ] = "identity"
    carrier: Annotated[
        str, Meta(description="what moves them: shoal (shared memory and TCP), or the library gloo, nccl or mpi")
    ] = "shoal"
    seed: Annotated[int, Meta(description="seed of the sample order and of every step's random generators")] = 0
    sync_batchnorm: Annotated[bool, Meta(description="BatchNorm statistics over all workers' samples")] = False
    bucket_mb: Annotated[
        float, Meta(description="gradients travel in groups of about this many MB, eight times that on a GPU")
    ] = 4.0
    threads: Annotated[int, Meta(description="torch threads per worker; 0 divides the cores evenly")] = 0
    address: Annotated[str, Meta(description="where the coordinator listens, HOST:PORT; port 0 is any free one")] = (
        "127.0.0.1:0"
    )
    plaintext: Annotated[
        bool, Meta(description="do not encrypt connections to other machines; for networks that you trust")
    ] = False
    heartbeat_limit: Annotated[float, Meta(description="seconds of silence after which a worker counts as lost")] = 5.0
    hang_limit: Annotated[
        float, Meta(description="seconds without a step, while others wait, after which a worker is expelled")
    ] = 600.0
    lease: Annotated[float, Meta(description="seconds that workers train on without the coordinator")] = 60.0
    max_failures: Annotated[int, Meta(description="identical failures of the script after which the job stops")] = 3
    digest_every: Annotated[
        int, Meta(description="steps between two comparisons of all workers' parameters; 0 for never")
    ] = 100
    chaos: Annotated[str, Meta(description='faults on purpose, such as "kill worker every 15s"')] = ""
    checkpoint_every: Annotated[
        str, Meta(description="steps such as 200, seconds such as 30s, end (when the job ends or is stopped) or never")
    ] = "end"
    checkpoint_to: Annotated[str, Meta(description="folder or fsspec URL; default the run directory")] = ""
    keep_checkpoints: Annotated[int, Meta(description="how many of the newest are kept, besides marked ones")] = 3
    resume: Annotated[str, Meta(description="run directory of a job to go on with")] = ""
    run_dir: Annotated[str, Meta(description="folder for the job's record; default runs/TIME-SCRIPT")] = ""
    progress: Annotated[str, Meta(description="auto, live, plain or none")] = "auto"
    open: Annotated[bool, Meta(description="open the report in a browser when the job ends")] = False

    def validate(self) -> Self:
        """Raise a UsageError that names the option, its value and what to do."""
        if not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(f"--workers is {self.workers}; a job needs at least 1 and has at most {MOST_WORKERS}")
        if not 0 <= self.min_workers <= self.workers:
            raise UsageError(
                f"--min-workers is {self.min_workers} of {self.workers} workers; it should be from 0 to {self.workers}"
            )
        if not 0 <= self.spares <= MOST_LOCAL:
            raise UsageError(f"--spares is {self.spares}; it should be from 0 to {MOST_LOCAL}")
        one_of("resize", self.resize, RESIZES)
        one_of("strategy", self.strategy, STRATEGIES)
        one_of("schedule", self.schedule, SCHEDULES)
        codec = codec_parts(self.codec)[0]
        one_of("codec", codec, CODECS if codec in CODECS else (*CODECS, *codecs_offered()))
        one_of("carrier", self.carrier, CARRIERS)
        self._check_carrier()
        one_of("progress", self.progress, PROGRESS)
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed is {self.seed}; it should be from 0 to 2^63-1")
        if not 0 < self.bucket_mb <= 1024:
            raise UsageError(f"--bucket-mb is {self.bucket_mb}; it should be above 0 and at most 1024")
        if self.threads < 0:
            raise UsageError(f"--threads is {self.threads}; it should be 0 (divide the cores) or more")
        if not 0.5 <= self.heartbeat_limit <= 3600:
            raise UsageError(f"--heartbeat-limit is {self.heartbeat_limit}; it should be from 0.5 to 3600 seconds")
        if not 1 <= self.hang_limit <= 86400:
            raise UsageError(f"--hang-limit is {self.hang_limit}; it should be from 1 to 86400 seconds")
        if not 1 <= self.lease <= 3600:
            raise UsageError(f"--lease is {self.lease}; it should be from 1 to 3600 seconds")
        if not 1 <= self.max_failures <= 1000:
            raise UsageError(f"--max-failures is {self.max_failures}; it should be from 1 to 1000")
        if not 0 <= self.digest_every <= 10**9:
            raise UsageError(f"--digest-every is {self.digest_every}; it should be 0 (never) or more steps")
        if not 1 <= self.keep_checkpoints <= 1_000_000:
            raise UsageError(f"--keep-checkpoints is {self.keep_checkpoints}; it should be from 1 to 1000000")
        parse_address(self.address, named="--address")
        _ = self.checkpoints
        self.check_server_values()
        return self

    @property
    def manners(self) -> Manners:
        """What the strategy is like, also for those who never load it."""
        return self.manners_with_servers if self.strategy == "parameter-server" else Manners()

    def _check_carrier(self) -> None:
        if self.carrier != "shoal" and (self.schedule, self.codec) != ("auto", "identity"):
            raise UsageError(
                f"--schedule {self.schedule} and --codec {self.codec} do not go with --carrier {self.carrier}, which "
                "has schedules of its own; leave them out, or take --carrier shoal"
            )

    @property
    def fewest(self) -> int:
        """With fewer workers a job that has begun waits."""
        return max(1, self.min_workers)

    @property
    def checkpoints(self) -> CheckpointRhythm:
        return checkpoint_rhythm(self.checkpoint_every)

    def to_toml(self) -> str:
        """Every setting, so that a file written today means the same when defaults change."""
        values: dict[str, object] = msgspec.to_builtins(self)
        return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())


@dataclass(frozen=True)
class CheckpointRhythm:
    """When checkpoints are made."""

    steps: int | None = None  # after every so many applied steps
    seconds: float | None = None  # after so many seconds since the last one began
    at_end: bool = True  # when the job ends or is stopped


def checkpoint_rhythm(text: str) -> CheckpointRhythm:
    if text == "end":
        return CheckpointRhythm()
    if text == "never":
        return CheckpointRhythm(at_end=False)
    if re.fullmatch(r"[0-9]{1,12}", text) and int(text) > 0:
        return CheckpointRhythm(steps=int(text))
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?s", text) and float(text[:-1]) > 0:
        return CheckpointRhythm(seconds=float(text[:-1]))
    raise UsageError(
        f"--checkpoint-every is {text!r}; it should be a number of steps (200), seconds (30s), end or never"
    )


def codec_parts(text: str) -> tuple[str, dict[str, str]]:
    """`int8:bits=4,seed=3` is the codec int8 and two settings, which the codec itself checks when it is made."""
    name, colon, rest = text.partition(":")
    settings: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not key or key in settings:
            raise UsageError(f"--codec is {text!r}; it should be NAME, or NAME:SETTING=VALUE,SETTING=VALUE,...")
        settings[key] = value
    return name, settings


def codecs_offered() -> dict[str, importlib.metadata.EntryPoint]:
    """By name: codecs of packages that are installed beside Shoal. Reads their metadata and imports nothing."""
    return {point.name: point for point in importlib.metadata.entry_points(group=CODEC_GROUP)}


def _toml(value: object) -> str:
    """JSON's numbers, booleans and strings are TOML's too, but for one control character that JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def field_names() -> tuple[str, ...]:
    """Names as the command line and files have them."""
    return JobConfig.__struct_encode_fields__


def from_mapping(values: Mapping[str, Any], *, origin: str) -> JobConfig:
    """Build from plain values, names in either spelling. `origin` says where they came from, for the error."""
    renamed = {name.replace("_", "-"): value for name, value in values.items()}
    if len(renamed) < len(values):
        twice = next(name for name in values if name.replace("_", "-") in values and "_" in name)
        raise UsageError(
            f"{origin} sets {twice!r} and {twice.replace('_', '-')!r}, which are one setting; leave one out"
        )
    for name in renamed:
        if name not in field_names():
            raise UsageError(f"{origin} sets {name!r}, which is no setting; {nearest(name, field_names())}")
    if isinstance(workers := renamed.get("workers"), str):
        renamed |= _workers_range(workers)
    for name in NUMBERS_IN_TEXT:
        if type(number := renamed.get(name)) is int:
            renamed[name] = str(number)
    if renamed.get("staleness"):
        renamed.setdefault("consistency", "asynchronous")
    try:
        return msgspec.convert(renamed, JobConfig).validate()
    except msgspec.ValidationError as error:
        raise UsageError(f"{origin}: {_plainly(str(error))}") from None


def _workers_range(text: str) -> dict[str, int]:
    """What `4` or `2:8` sets."""
    if not re.fullmatch(r"[0-9]{1,6}(:[0-9]{1,6})?", text):
        raise UsageError(f"--workers is {text!r}; it should be a number, or MIN:MAX such as 2:8")
    fewest, colon, most = text.rpartition(":")
    return {"workers": int(most)} | ({"min-workers": int(fewest)} if colon else {})


def _plainly(error: str) -> str:
    """msgspec's words without its markup: Expected `int`, got `str` - at `$.workers`."""
    what, _, where = error.partition(" - at `$.")
    return f"{where.rstrip('`')}: {what.replace('`', '')}" if where else what


def read_toml(path: Path, *, may_be_pipe: bool = False) -> dict[str, Any]:
    """The settings in a file, not yet checked. A file that the user names may be a pipe, as shells make them."""
    try:
        return files.toml_of(path.read_text(encoding="utf-8")) if may_be_pipe else files.read_toml(path)
    except FileNotFoundError:
        raise UsageError(f"the configuration file {path} does not exist") from None
    except OSError as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"the configuration file {path} is not TOML: {error}") from None


def from_toml(text: str, *, origin: str) -> JobConfig:
    try:
        mapping = files.toml_of(text)
    except ValueError as error:
        raise UsageError(f"{origin} is not TOML: {error}") from None
    return from_mapping(mapping, origin=origin)
