"""`shoal run [options] SCRIPT [its arguments]`: reads the command line and hands over to the job.

`shoal run --resume RUN_DIR` needs no script: it takes the recorded one, with the arguments it had.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from shoal.cli import texts
from shoal.cli.jobs.script_options import WORKERS, KnownOption, in_order, misplaced, split_arguments
from shoal.cli.options import Parser, add_settings, config_from
from shoal.disk.resuming import after_requeue, recorded_job, resumed_settings
from shoal.errors import UsageError
from shoal.launching.processes.specs import check_script
from shoal.launching.run_job import run_job
from shoal.launching.script_source import source_of

DESCRIPTION = """\
Trains SCRIPT on one or many worker processes: of this machine, or with --on of other machines and clusters. The script
is one that calls shoal.main, or a plain torch.distributed script, which finds torchrun's variables. Everything after
SCRIPT is handed to it untouched; where an option of `shoal run` stands there and is the script's own,
`shoal run -- SCRIPT -n 2` says so.
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
    parsed = _parsed(arguments)
    config = after_requeue(config_from(parsed))
    script, rest = parsed.script, tuple(parsed.arguments)
    if script is not None:
        check_script(script)
        _look_behind(script, rest, arguments, parsed)
    if config.resume:
        config = resumed_settings(config, partial(config_from, parsed))
        if script is None:
            script, rest = recorded_job(Path(config.run_dir))
    if script is None:
        raise UsageError(texts.no_script(USAGE))
    return run_job(config, script, rest).exit_code


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return parser().parse_all(arguments)
    except UsageError:
        if "-m" in arguments[:-1]:
            module, *rest = arguments[arguments.index("-m") + 1 :]
            before = arguments[: arguments.index("-m")]
            file = f"{module.replace('.', '/')}.py"
            raise UsageError(texts.no_modules(module, shlex.join(("shoal", "run", *before, file, *rest)))) from None
        raise


def _look_behind(script: str, rest: Sequence[str], arguments: Sequence[str], parsed: argparse.Namespace) -> None:
    """Refuse a number of workers that stands behind the script and is not the script's own; warn of other options."""
    known = known_options()
    behind, _ = split_arguments(rest, known)
    before = arguments[: len(arguments) - len(rest) - 1]
    if not behind or "--" in before:
        return
    doubtful = misplaced(behind, vars(parsed).keys(), source_of(Path(script)))
    for option in doubtful:
        meant = shlex.join(("shoal", "run", *before, "--", script, *rest))
        text = texts.behind_the_script(option.name, script, in_order(before, script, rest, known), meant)
        if option.setting == WORKERS:
            raise UsageError(text)
        print(f"shoal: warning: {text}", file=sys.stderr, flush=True)


def known_options() -> dict[str, KnownOption]:
    """By their names on the command line."""
    return {
        name: KnownOption(action.dest, takes_value=action.nargs != 0)
        for action in parser()._actions
        for name in action.option_strings
        if action.dest != "help"
    }


def whole_command(words: Sequence[str]) -> str:
    """The command line that words without `run` were meant to be."""
    place = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    if place is None:
        return shlex.join(("shoal", "run", *words, "SCRIPT"))
    return in_order(words[:place], words[place], words[place + 1 :], known_options())
