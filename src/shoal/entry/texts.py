"""What `shoal.main` tells people about a script that runs alone, and about one that cannot run as it is."""

from __future__ import annotations

from collections.abc import Mapping


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
