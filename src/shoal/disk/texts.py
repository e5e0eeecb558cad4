"""What users are told about what a job has on disk: its run directory, token, recorded settings, checkpoints, report.

Tests refer to these texts, so that mending a word breaks none of them.
"""

from __future__ import annotations

from pathlib import Path

RUN_RESUME = "shoal run --resume {path} SCRIPT [its arguments]"

# Settings from several origins


def two_minimums(origin: str, workers: object) -> str:
    return f"{origin} sets --workers {workers} and --min-workers; leave one of the minimums out"


# Tokens

FILE_OF_JOB = "`shoal show RUN` names the file of a job that runs, which is gone when the job is"
FILE_OF_GROUP = "`shoal servers start` names the file of a group that runs"


def token_not_written(folder: Path, why: str | None) -> str:
    return f"the job's token cannot be written in {folder}: {why}; set XDG_RUNTIME_DIR to another folder"


def token_unreadable(named: str, path: Path, why: object, advice: str) -> str:
    """`named`: the option or variable; `advice`: what to do, or empty."""
    return f"{named} {path} {why}{advice and f'; {advice}'}"


# Run directories


def run_directory_taken(path: Path, *, has_job: bool) -> str:
    resume = f", or go on with its job with --resume {path}" if has_job else ""
    return f"the run directory {path} is already there and not empty; name another with --run-dir, or remove it{resume}"


def run_directory_not_made(path: Path, why: str | None) -> str:
    return f"the run directory {path} cannot be made: {why}; name another with --run-dir"


def run_directory_not_written(path: Path, why: object) -> str:
    return f"the run directory {path} cannot be written: {why}"


def run_directory_not_held(path: Path, lock: str, why: object) -> str:
    return f"the run directory {path} cannot be held: {lock} in it cannot be written: {why}"


def still_running(path: Path) -> str:
    return f"the job in {path} is still running; wait for its end, or stop it first"


def no_run(text: str, instead: str) -> str:
    return f"there is no run {text!r}{instead}"


def no_run_directory(text: str, config: str) -> str:
    return f"{text} is no run directory: it has no {config}"


def several_runs(text: str, count: int, names: str) -> str:
    return f"{text!r} is the beginning of {count} runs: {names}; write more of the name"


# Going on with a job


def two_run_directories(run_dir: str, resume: str) -> str:
    return (
        f"--run-dir {run_dir} and --resume {resume} are both given; a resumed job goes on in its own run directory: "
        "leave --run-dir out, or give --resume= to start a new job"
    )


def record_unreadable(record: Path, why: str | None, path: Path) -> str:
    how = RUN_RESUME.format(path=path)
    return f"{record}, which names the script, cannot be read: {why}; name the script: `{how}`"


def record_names_no_script(record: Path, path: Path) -> str:
    return f"{record} names no script; use `{RUN_RESUME.format(path=path)}`"


def belongs_to(file: Path, owner: str) -> str:
    return f"{file} belongs to {owner}"


def writable_by_all(file: Path) -> str:
    return f"{file} can be written by everybody"


# Checkpoints


def no_checkpoint(place: str) -> str:
    return (
        f"there is no checkpoint in {place} to resume from; start the job anew with `shoal run SCRIPT`, or give "
        "--checkpoint-to where its checkpoints are elsewhere"
    )


def checkpoints_not_kept(place: str, why: object) -> str:
    return f"checkpoints cannot be kept in {place}: {why}; give another --checkpoint-to"


def anothers_checkpoints(place: str) -> str:
    return (
        f"the checkpoints of another job are in {place} already; go on with that with --resume, give another --run-dir "
        "or --checkpoint-to, or remove them"
    )


def checkpoints_unreadable(place: str, why: object) -> str:
    return f"the checkpoints in {place} cannot be read: {why}"


# The report


def report_not_made(report: Path, why: object, run_dir: Path) -> str:
    return f"the report {report} could not be made: {why}; `shoal report {run_dir}` tries again"


def report_not_written(run_dir: Path) -> str:
    return f"no report was written; `shoal report {run_dir}` makes one"


def no_browser(report: Path) -> str:
    return f"no browser could be started; the report is {report}"
