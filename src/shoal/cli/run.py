"""`shoal run [options] SCRIPT [its arguments]`: reads the command line and hands over to the job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from shoal.cli.job import run_job
from shoal.cli.options import Parser, add_settings, config_from
from shoal.errors import UsageError

DESCRIPTION = """\
Trains SCRIPT on one or many worker processes of this machine. The script is one that calls shoal.main, or a plain
torch.distributed script, which finds torchrun's variables. Everything after SCRIPT is handed to it untouched.
Settings may also stand in a TOML file (--config) under the same names; the command line beats the file."""


def parser() -> Parser:
    made = Parser(prog="shoal run", description=DESCRIPTION, usage="shoal run [options] SCRIPT [its arguments]")
    add_settings(made)
    made.add_argument("script", nargs="?", metavar="SCRIPT", help="the Python file to run")
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    config = config_from(parsed)
    if parsed.script is None:
        raise UsageError("no script given; use `shoal run [options] SCRIPT [its arguments]`")
    return run_job(config, parsed.script, tuple(parsed.arguments))
