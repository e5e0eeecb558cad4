"""`shoal run [options] SCRIPT [its arguments]`: reads the command line and hands over to the job.

`shoal run --resume RUN_DIR` needs no script: it takes the recorded one, with the arguments it had.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from shoal.cli import texts
from shoal.cli.options import Parser, add_settings, config_from
from shoal.errors import UsageError
from shoal.launching.disk.resuming import recorded_job, resumed_settings
from shoal.launching.run_job import run_job

DESCRIPTION = """\
Trains SCRIPT on one or many worker processes of this machine. The script is one that calls shoal.main, or a plain
torch.distributed script, which finds torchrun's variables. Everything after SCRIPT is handed to it untouched.
Settings may also stand in a TOML file (--config) under the same names; the command line beats the file.
With --resume RUN_DIR a job goes on from its newest checkpoint, with its recorded settings, script and arguments where
none are given."""
USAGE = "shoal run [options] SCRIPT [its arguments]"
USAGE_RESUME = "shoal run --resume RUN_DIR [options] [SCRIPT [its arguments]]"


def parser() -> Parser:
    made = Parser(prog="shoal run", description=DESCRIPTION, usage=f"{USAGE}\n       {USAGE_RESUME}")
    add_settings(made)
    made.add_argument("script", nargs="?", metavar="SCRIPT", help="the Python file to run")
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    config = config_from(parsed)
    script, rest = parsed.script, tuple(parsed.arguments)
    if config.resume:
        config = resumed_settings(config, partial(config_from, parsed))
        if script is None:
            script, rest = recorded_job(Path(config.run_dir))
    if script is None:
        raise UsageError(texts.no_script(USAGE))
    return run_job(config, script, rest).exit_code
