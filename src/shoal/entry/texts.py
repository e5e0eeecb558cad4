"""What `shoal.main` tells people about a script that runs alone, and about one that cannot run as it is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


def nothing_to_resume(run_dir: str) -> str:
    """`run_dir`: empty where the script names none."""
    where = (
        f"{run_dir} holds no checkpoint yet" if run_dir else "runs/ holds no run of this script with a checkpoint yet"
    )
    return f"resume='last': {where}, so the script starts from the beginning"


def checkpoint_went(step: int, run_dir: str, command: str) -> str:
    return f"shoal: checkpoint of step {step} is in {run_dir}; go on with `{command}`"


def incomplete(file: str) -> str:
    return f"{file} is incomplete: it could not be written to the end"


def taken_over(settings: Mapping[str, object]) -> str:
    """`settings`: by name, as on the command line."""
    named = ", ".join(f"{name.replace('-', '_')}={value!r}" for name, value in settings.items())
    return f"the job takes over what shoal.main is given: {named}"


def starts_processes(process: int, worker: int) -> str:
    return (
        f"process {process}, started by worker {worker}, calls shoal.main; under `shoal run` every worker is a process "
        "already: start none in the script, or run it with plain python"
    )


def plain_torch_elsewhere(node: str) -> str:
    return (
        f"this worker, on node {node}, makes a torch.distributed group with workers on other nodes, where torch's "
        "store would authenticate nobody; hand the training function to shoal.main(train), or give the hosts file "
        "one host"
    )


# Workers that train models of their own

WAYS_IN = "hand the training function to shoal.main(train), or call torch.distributed.init_process_group first"


def trains_alone(where: str, workers: int) -> str:
    return (
        f"{where}: an optimizer steps, but the script has neither called shoal.main nor made a process group, so each "
        f"of the {workers} workers would train a model of its own; {WAYS_IN}; SHOAL_COPIES=1 says that independent "
        "copies are meant"
    )


def ran_as_copies(script: str, workers: int) -> str:
    return (
        f"{script} ran as {workers} independent copies: it neither called shoal.main nor made a process group; "
        f"{WAYS_IN}, or start it with python, or set SHOAL_COPIES=1 if copies are meant"
    )


def spawns_workers(where: str, name: str) -> str:
    """`where`: file and line. `name`: of torch's function."""
    return (
        f"{where}: torch.{name}: the script starts its own workers, but `shoal run` has already started them; call the "
        'function directly, once, with rank = int(os.environ["RANK"]), or run the script with plain python'
    )


def alone(device: str, script: str) -> str:
    """`script`: the file's name; empty: not known."""
    advice = f"; `shoal run -n 4 {script}` trains on 4" if script else ""
    return f"training in 1 process, on {device}{advice}"


# The file of a job's function


def function_gone(file: str) -> str:
    return (
        f"the function of this job is not there any more: {file} is gone; it was in no module that workers could "
        "import, so give it again: shoal.launch(train, resume=...)"
    )


def function_not_private(file: str) -> str:
    return f"{file}, which holds the job's function, is no plain file of this user alone; it is not read"


# How it ended: the last line of a script that ran alone, and of a job

FAILED = "failed"
RAISED = "the script raised"


def _so_far(seconds: str, steps: int) -> str:
    counted = "" if not steps else ", 1 step" if steps == 1 else f", {steps:,} steps"
    return f"{seconds}{counted}"


def finished(seconds: str, steps: int, run_dir: Path) -> str:
    look = (
        f"look at it: shoal report --open {shlex.quote(str(run_dir))}"
        if steps
        else f"what it printed is in {run_dir / 'logs'}"
    )
    return f"finished in {_so_far(seconds, steps)}; {look}"


def script_raised(error: str, where: str) -> str:
    """`where`: 'on worker 1 in step 4'."""
    return f"{FAILED}: {RAISED} {error} {where}"


class FailureWords(NamedTuple):
    """What the last line of a failed job is made of."""

    how: str
    seconds: str  # as text
    steps: int
    look_at: Path
    go_on: str = ""  # the command that does so from the last checkpoint; empty: there is none


def failed(told: FailureWords) -> str:
    go_on = f"; go on from the last checkpoint: {told.go_on}" if told.go_on else ""
    return f"{told.how}, after {_so_far(told.seconds, told.steps)}; look at {told.look_at}{go_on}"
