"""`shoal join ADDRESS --token-file FILE`: adds one worker, on this machine, to a job that runs somewhere.

Not here: the job itself (`run`), and what happens to the worker (`launching.guest_worker`).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.disk.job_token import read_token
from shoal.entry.function_script import SCRIPT, recorded_call
from shoal.environment import likely_typos, parse_address
from shoal.errors import UsageError
from shoal.job_config import from_toml
from shoal.launching.guest_worker import join_job
from shoal.launching.processes.specs import Job, check_script
from shoal.membership.record.first_event import script_digest
from shoal.values import Address
from shoal.wire.messages import Welcome

DESCRIPTION = """\
Adds one worker on this machine to a running job. ADDRESS is where its coordinator listens and FILE holds the job's
token: the file that `shoal show RUN` names, or a private copy of it on another machine. SCRIPT and its arguments are
the job's own unless given; a relative script is looked for in the current folder. Ctrl-C hands the worker's place over
at the end of a step, and so does SIGTERM, which ends with 143."""
USAGE = "shoal join ADDRESS --token-file FILE [--threads N] [--wait SECONDS] [SCRIPT [its arguments]]"


def parser() -> Parser:
    made = Parser(prog="shoal join", description=DESCRIPTION, usage=USAGE)
    made.add_argument("--token-file", dest="token_file", required=True, metavar="FILE", help="file with the token")
    made.add_argument("--threads", type=int, default=0, metavar="N", help="torch threads; default as the job has it")
    made.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="for a coordinator to come; default not at all"
    )
    made.add_argument("address", metavar="ADDRESS", help="HOST:PORT of the job's coordinator")
    made.add_argument("script", nargs="?", metavar="SCRIPT", help="default the job's script")
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(_options_first(arguments))
    if parsed.threads < 0:
        raise UsageError(texts.too_few_threads(parsed.threads))
    if not 0 <= parsed.wait < math.inf:
        raise UsageError(texts.bad_wait(parsed.wait))
    address = parse_address(parsed.address, named="ADDRESS")
    if not address.port:
        raise UsageError(texts.no_port(parsed.address))
    token_file = Path(parsed.token_file).absolute()
    token = read_token(token_file)
    for doubt in likely_typos():
        print(f"shoal: warning: {doubt}", file=sys.stderr)
    return join_job(address, token, lambda welcome: _job(welcome, parsed, address, token_file), wait=parsed.wait)


def _options_first(arguments: Sequence[str]) -> list[str]:
    """Move ADDRESS behind the options: argparse takes what follows ADDRESS for the script and its arguments."""
    end = 1
    while end < len(arguments) and arguments[end].startswith("-") and not arguments[0].startswith("-"):
        end += 1 if "=" in arguments[end] or arguments[end] in ("-h", "--help") else 2
    return [*arguments[1:end], *arguments[:1], *arguments[end:]]


def _job(welcome: Welcome, parsed: argparse.Namespace, address: Address, token_file: Path) -> Job:
    """The job's own script and arguments, unless others are given."""
    script, rest = parsed.script, tuple(parsed.arguments)
    if script is None:
        script, rest = welcome.script, welcome.arguments
        if not script:
            raise UsageError(texts.job_has_no_script(address, USAGE))
        if (call := recorded_call(script, rest)) is not None:
            if call.pickle and not Path(call.pickle).exists():
                raise UsageError(texts.function_stays(call.name))
            script = SCRIPT  # the same module, wherever this machine has it
    check_script(script)
    if parsed.script is None and welcome.digest and (own := script_digest(script)) != welcome.digest:
        raise UsageError(texts.other_script(script, own, welcome.digest))
    config = from_toml(welcome.config, origin="the coordinator's configuration")
    return Job(
        config=config,
        script=script,
        arguments=rest,
        run_dir=Path(config.run_dir),
        token_file=token_file,
        coordinator=address,
        threads=parsed.threads,
    )
