"""`shoal manifests SCRIPT [options] [-- its arguments]`: what a Kubernetes cluster needs to run a job, as YAML.

Reads the command line and the script, and writes documents. Not here: the documents (`engines.kubernetes`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.cli import texts
from shoal.cli.options import Once, Parser, add_settings, config_from
from shoal.engines.kubernetes import texts as kubernetes_texts
from shoal.engines.kubernetes.cluster_job import (
    ClusterJob,
    PodScript,
    SharedPlace,
    Upkeep,
    WorkerResources,
    name_from,
    shared_place,
)
from shoal.engines.kubernetes.manifests import render
from shoal.engines.kubernetes.yaml_text import documents
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching.processes.specs import check_script
from shoal.launching.script_source import modules_beside
from shoal.settings.kinds import OWN_ENGINES, settings_of
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.wire.token_file import new_token

USAGE = "shoal manifests SCRIPT --image IMAGE -n MIN:MAX [options] [-- the script's arguments]"
WITH_CLAIM = "shoal manifests SCRIPT --image IMAGE --checkpoint-to claim:NAME"
DESCRIPTION = """\
Writes a Secret with a new token, a ConfigMap with the script, a Service, a Job for the coordinator and a Job for the
workers, for `kubectl apply -f -`. IMAGE has to have Python, torch, shoal, a shell and what the script imports. The job
starts with MIN workers and grows to MAX. --checkpoint-to is a URL such as s3://bucket/folder, or claim:NAME[/FOLDER]
for a volume claim that all pods may write; without it no checkpoints are kept. Who reads the output can join the job:
it holds the token. Settings that are about one machine's processes are refused: --address, --run-dir, --resume,
--spares, --chaos, --progress, --open, --on and what belongs to one engine, such as --hosts."""
ENGINE_SETTINGS = tuple(name for kind in settings_of(OWN_ENGINES.values()) for name in kind.names())
# Settings of `shoal run` that pods have no use for, and why.
NOT_FOR_PODS: Mapping[str, str] = {
    "address": "the Service has the coordinator's address",
    "run-dir": "the record is beside the checkpoints on a volume claim (--checkpoint-to claim:NAME), or in the "
    "coordinator's pod",
    "resume": "a coordinator in a pod begins a new job",
    "spares": "Kubernetes replaces workers that are lost",
    "chaos": "the launcher of `shoal run` causes faults, and pods have none",
    "progress": "nobody watches the coordinator's pod; `kubectl logs` shows what workers print",
    "open": "pods have no browser",
    **dict.fromkeys(("on", *ENGINE_SETTINGS), "Kubernetes decides where pods run"),
}
PLACED = ("workers", "min-workers", "threads", "checkpoint-to", "checkpoint-every")  # given in another form
MOST_REMEMBERED = 200_000  # bytes: `kubectl apply` keeps a copy of what it applied, in at most 256 KiB


def parser() -> Parser:
    made = Parser(prog="shoal manifests", description=DESCRIPTION, usage=USAGE)
    group = made.add_argument_group("Kubernetes")
    plan, upkeep = WorkerResources(), Upkeep()
    group.add_argument("--image", default="", metavar="IMAGE", help="what all pods run; needed")
    group.add_argument("--name", default="", metavar="NAME", help="of the job; default made from the script's name")
    group.add_argument("--namespace", default="", metavar="NAME", help="default the one that kubectl is set to")
    group.add_argument("--cpu", default=plan.cpu, metavar="N", help=f"cores of a worker (default: {plan.cpu})")
    group.add_argument(
        "--memory", default=plan.memory, metavar="SIZE", help=f"of a worker, such as 512Mi (default: {plan.memory})"
    )
    group.add_argument("--gpus", type=int, default=0, metavar="N", help="NVIDIA GPUs of a worker; default none")
    group.add_argument(
        "--in-image", dest="in_image", action="store_true", help="SCRIPT is a path in the image; needs no ConfigMap"
    )
    group.add_argument(
        "--env-from", dest="env_from", default="", metavar="SECRET", help="Secret with variables, such as keys for S3"
    )
    group.add_argument(
        "--service-account", dest="service_account", default="", metavar="NAME", help="default the namespace's own"
    )
    group.add_argument(
        "--grace",
        type=int,
        default=upkeep.grace,
        metavar="SECONDS",
        help=f"that a worker has to hand over before it is killed (default: {upkeep.grace})",
    )
    group.add_argument(
        "--keep",
        type=int,
        default=upkeep.keep,
        metavar="SECONDS",
        help=f"that finished Jobs and their logs stay (default: {upkeep.keep})",
    )
    group.add_argument(
        "--output", action=Once, default=argparse.SUPPRESS, metavar="FILE", help="a new file; default standard output"
    )
    add_settings(made)
    made.add_argument("script", nargs="?", metavar="SCRIPT", help="the Python file to run")
    return made


def main(arguments: Sequence[str]) -> int:
    own, rest = _split(arguments)
    made = parser()
    if stray := _stray(made, own):
        raise UsageError(texts.behind_dashes(stray, f"shoal manifests SCRIPT [options] -- {stray}"))
    parsed = made.parse_all(own)
    config = _checked(config_from(parsed))
    if parsed.script is None:
        raise UsageError(texts.no_script(USAGE))
    if not parsed.image:
        raise UsageError(texts.no_image(USAGE))
    job = _job(parsed, config, tuple(rest))
    _write(documents(render(job, new_token())), getattr(parsed, "output", None))
    if not job.place.is_there and config.checkpoint_every != "never":
        print(f"shoal: {texts.kept_nowhere(WITH_CLAIM)}", file=sys.stderr)
    if len(job.script.content or b"") > MOST_REMEMBERED:
        print(f"shoal: {texts.too_large_to_remember(parsed.script, len(job.script.content or b''))}", file=sys.stderr)
    return 0


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own words, and those of the script, which follow `--`."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    return words[: words.index("--")], words[words.index("--") + 1 :]


def _stray(made: Parser, words: Sequence[str]) -> str:
    """The first word that is neither an option nor the script, where no wrong option stands before it."""
    _, unknown = made.parse_known_args(list(words))
    return unknown[0] if unknown and not unknown[0].startswith("-") else ""


def _checked(config: JobConfig) -> JobConfig:
    for setting in config.given:
        if setting in NOT_FOR_PODS:
            raise UsageError(texts.nothing_for_pods(setting, NOT_FOR_PODS[setting]))
    if config.has(ParameterServerSettings):
        raise UsageError(texts.no_servers_in_pods(config.strategy))
    return config


def _job(parsed: argparse.Namespace, config: JobConfig, rest: tuple[str, ...]) -> ClusterJob:
    name = parsed.name or name_from(parsed.script)
    place = shared_place(config.checkpoint_to)
    return ClusterJob(
        name=name,
        namespace=parsed.namespace,
        image=parsed.image,
        run=f"{time.strftime('%Y%m%d-%H%M%S')}-{name}",
        workers=config.workers,
        settings=_settings(config, place),
        script=PodScript(parsed.script, None if parsed.in_image else _content(parsed.script), rest),
        place=place,
        threads=config.threads,
        resources=WorkerResources(parsed.cpu, parsed.memory, parsed.gpus),
        upkeep=Upkeep(parsed.grace, parsed.keep, parsed.env_from, parsed.service_account),
    ).checked()


def _settings(config: JobConfig, place: SharedPlace) -> tuple[str, ...]:
    """The job's settings as options of `shoal coordinator`."""
    values = config.values()
    fewest = f"{config.min_workers}:" if config.min_workers else ""
    words = [f"--workers={fewest}{config.workers}"]
    words += [_option(name, values[name]) for name in config.given if name not in PLACED]
    every = config.checkpoint_every
    if place.is_there and "checkpoint-every" in config.given:
        words.append(f"--checkpoint-every={every}")
    elif not place.is_there:
        if "checkpoint-every" in config.given and every != "never":
            raise UsageError(kubernetes_texts.nowhere_for_checkpoints(every))
        words.append("--checkpoint-every=never")
    return (*words, *((f"--checkpoint-to={place.url}",) if place.url else ()))


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def _content(script: str) -> bytes:
    check_script(script)
    for module in modules_beside(Path(script)):
        raise UsageError(kubernetes_texts.needs_modules(script, module))
    return Path(script).read_bytes()


def _write(text: str, output: str | None) -> None:
    """The token is in it, so a file is for this user alone."""
    if output is None:
        sys.stdout.write(text)
        return
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(texts.output_there(output)) from None
    except OSError as error:
        raise UsageError(texts.not_made("output", output, error.strerror)) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
