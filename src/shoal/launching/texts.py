"""What launching says to people, in one place: mending a word here breaks no test, for tests refer to these texts too.

Messages that end a command, lines on the screen while a job runs, and phrases that both use. Not here: `--chaos`
(`chaos.texts`), and what workers and the coordinator say.
"""

from __future__ import annotations

import signal
from pathlib import Path

AGAIN = "(Ctrl-C again to stop now)"
RUN_RESUME = "shoal run --resume {path} SCRIPT [its arguments]"

# The script and the settings

NO_SCRIPT = "no script given; name the Python file to run"


def script_missing(script: str) -> str:
    return f"the script {script} does not exist (looked in {Path.cwd()})"


def script_is_no_file(script: str) -> str:
    return f"the script {script} is not a file; name the Python file to run"


def too_many_workers(workers: int, most: int) -> str:
    return (
        f"--workers is {workers}; one machine starts at most {most}: start a coordinator with `shoal coordinator` and "
        "add workers with `shoal join`"
    )


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


# Stopping

STOP_WORDS = {
    signal.SIGINT: "interrupted by Ctrl-C",
    signal.SIGTERM: "stopped by SIGTERM",
    signal.SIGHUP: "stopped because the terminal closed",
    signal.SIGPIPE: "stopped because nobody reads its output any more",
}
STOPPING = f"stopping {AGAIN}"
STOPPING_AFTER_STEP = f"stopping after this step {AGAIN}"
LAST_CHECKPOINT = f"writing the last checkpoint {AGAIN}"


def stopping_without_disk(seconds: float) -> str:
    why = "the coordinator waits for the disk and can tell the workers nothing"
    return f"stopping within {seconds:g} s: {why} {AGAIN}"


# Processes


def coordinator_hangs(seconds: float) -> str:
    return f"the coordinator has not answered for {seconds:g} s and is started again"


def coordinator_gone(how: str, times: int) -> str:
    """`times`: within a minute; 0: how often does not matter."""
    often = f", {times} times within a minute," if times else ""
    return f"the coordinator process {how}{often} and the job cannot go on without it; all workers were stopped"


def failed_after_training(worker: int, how: str) -> str:
    return f"worker {worker} {how} after the training was over"


def place_given_up(processes: int) -> str:
    count = "the process" if processes == 1 else f"each of {processes} processes"
    return f"{count} started in the place of a lost worker was turned away; no other is started there"


# Parameter servers


def servers_hopeless(why: str, log: Path | None) -> str:
    where = "" if log is None else f"; what it printed is in {log}"
    return f"the parameter servers cannot be kept running: {why}{where}"


def no_more_servers(why: str) -> str:
    return f"warning: no more servers are started: {why}"


def servers_never_join(count: int, how: str) -> str:
    return f"{count} in a row ended before they had joined the group, the last one: it {how}"


def servers_lost_often(count: int, how: str) -> str:
    return f"{count} were lost within a minute, the last one: it {how}"


def group_silent(keeper: object, why: object) -> str:
    return f"warning: the server group at {keeper} does not answer: {why}"


# From Python


def launch_in_worker(worker: int) -> str:
    return (
        f"shoal.launch is called in worker {worker} of a job, which would start a job in every worker; put the call "
        'under `if __name__ == "__main__":`'
    )


def no_program(given: object) -> str:
    return f"shoal.launch() takes the path of a script or a function, not {type(given).__name__}"


def arguments_of_script(script: str) -> str:
    return f'arguments= is for functions; give those of {script} as text: shoal.launch({script!r}, "--lr", "0.1")'


def text_for_function(name: str, first: str) -> str:
    return f"{name} is a function and cannot take {first!r}; give values by name: shoal.launch({name}, arguments=...)"


def wrong_keywords(name: str, signature: str, why: object) -> str:
    return f"{name}{signature} cannot be called with a run and these arguments: {why}"


def no_cloudpickle(name: str) -> str:
    return (
        f"workers cannot import {name} (it is from a notebook's cell, a lambda, inside another function, or has "
        "arguments that JSON cannot hold) and it cannot travel as it is without cloudpickle: `pip install "
        "'shoal[notebook]'`, or move it to the top of a module"
    )


def not_pickled(name: str, why: object) -> str:
    return f"{name} cannot travel to workers: {why}; make what it needs inside of it, or move it to the top of a module"


def function_not_written(folder: Path, why: str | None) -> str:
    return f"the job's function cannot be written in {folder}: {why}; set XDG_RUNTIME_DIR to another folder"


def function_not_kept(name: str, path: Path) -> str:
    return (
        f"the function {name} of the job in {path} was in no module that workers could import, and is gone with the "
        f"job; give it again: shoal.launch({name}, resume={str(path)!r})"
    )
