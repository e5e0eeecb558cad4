"""The command `shoal`: runs a subcommand and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from shoal.cli import texts
from shoal.cli.commands import Command, dispatch
from shoal.errors import Interrupted, ShoalError, UsageError, printable

COMMANDS = {
    "run": Command("shoal.cli.jobs.run", "train a script on one or many processes"),
    "join": Command("shoal.cli.jobs.join", "add a worker to a job that runs"),
    "simulate": Command("shoal.cli.simulate", "predict the goodput of a cluster under failures"),
    "runs": Command("shoal.cli.records.runs", "list jobs with state, progress and result", "reading the records"),
    "show": Command("shoal.cli.records.show", "sum up one job", "reading the record"),
    "report": Command("shoal.cli.records.report", "write one HTML page about one or several jobs"),
    "checkpoints": Command(
        "shoal.cli.records.checkpoints", "list, check and mark a run's checkpoints", "reading the checkpoints"
    ),
    "export": Command("shoal.cli.records.export", "write a run's model to a file", "reading and writing the model"),
    "import": Command("shoal.cli.records.import_", "make a run from a model's file", "reading and writing the model"),
    "servers": Command("shoal.cli.jobs.servers", "run parameter servers for many jobs, and see to them"),
    "coordinator": Command("shoal.cli.jobs.coordinator", "run a job's coordinator by itself"),
    "server": Command("shoal.cli.jobs.server", "run one parameter server of a group"),
    "manifests": Command("shoal.cli.jobs.manifests", "write what a Kubernetes cluster needs to run a job"),
    "bench": Command("shoal.bench.benchmarks", "measure this machine"),
}


def entry_point() -> None:
    """The console script. The reader of its output may leave early: `shoal runs | head -1`."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # so that Python's flush at exit does not fail again
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        if list(arguments) == ["--version"]:
            import importlib.metadata

            print(f"shoal {importlib.metadata.version('shoal')}")
            return 0
        if arguments and _is_run_left_out(arguments[0]):
            from shoal.cli.jobs.run import whole_command

            raise UsageError(texts.run_left_out(arguments[0], whole_command(arguments)))
        return dispatch("shoal", COMMANDS, arguments)
    except ShoalError as error:
        _complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        raise
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:  # a path from the command line
        _complain(texts.not_usable(error.filename, error.strerror))
        return UsageError.exit_code
    except KeyboardInterrupt:
        return Interrupted.exit_code


def _is_run_left_out(word: str) -> bool:
    """`shoal train.py` and `shoal -n 2 train.py`."""
    return word not in COMMANDS and (word.endswith(".py") or (word.startswith("-") and word not in ("-h", "--help")))


def _complain(text: str) -> None:
    """Names in the text may come from a record and hold control characters, which could move the cursor."""
    shown = "\n".join(map(printable, text.expandtabs().split("\n")))
    print(f"shoal: error: {shown}", file=sys.stderr)
