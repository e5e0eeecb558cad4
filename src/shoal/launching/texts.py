"""What launching says to people, in one place: mending a word here breaks no test, for tests refer to these texts too.

Messages that end a command, lines on the screen while a job runs, and phrases that both use. Not here: `--chaos`
(`chaos.texts`), run directories and tokens (`disk.texts`), and what workers and the coordinator say.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from shoal.entry.texts import FAILED, FailureWords, failed, finished, script_raised
from shoal.membership.texts import AGAIN, STOP_WORDS, STOPPING_AFTER_STEP

__all__ = [  # what others look for here too
    "FAILED",
    "STOPPING_AFTER_STEP",
    "STOP_WORDS",
    "FailureWords",
    "failed",
    "finished",
    "script_raised",
]


# The script and the settings

NO_SCRIPT = "no script given; name the Python file to run"


def script_missing(script: str, near: str = "") -> str:
    """`near`: a file that was probably meant."""
    return f"the script {script} does not exist (looked in {Path.cwd()}){near and f'; did you mean {near}?'}"


def starter_given(word: str) -> str:
    return f"{word} stands where the script should; leave it out: `shoal run -n N SCRIPT` starts Python itself"


def no_python_file(script: str, what: str) -> str:
    return f"the script {script} is {what}"


def about_to_run(doubt: str, command: str) -> str:
    """`doubt`: why the user may not want that."""
    return f"{doubt}; about to run {command}"


def script_is_no_file(script: str) -> str:
    return f"the script {script} is not a file; name the Python file to run"


def too_many_workers(workers: int, most: int) -> str:
    return (
        f"--workers is {workers}; one machine starts at most {most}: start a coordinator with `shoal coordinator` and "
        "add workers with `shoal join`"
    )


def engine_not_installed(engine: str, package: str, requirement: str) -> str:
    """`requirement`: what to give to pip."""
    return f'--on {engine} needs the package {package}, which is not installed: pip install "{requirement}"'


# Tables of clusters

NO_PLACE_FOR_TABLE = (
    "a table was given, but no place for its rows: pass at=, a folder or URL that all nodes of the cluster reach, such "
    "as at='s3://bucket/rows'"
)
NO_CLASSIC_SESSION = (
    "this data frame belongs to a session of Spark Connect, which starts no workers; use a SparkSession whose driver "
    "is in this program (SparkSession.builder.master(...))"
)


def table_not_shared(hosts: str, place: str, missed: int, rows: int) -> str:
    return (
        f"{missed:,} of {rows:,} rows were not written, because {hosts} cannot see {place} of this machine; pass as "
        "at= a folder or URL that all machines of the cluster share"
    )


def on_given(engine: str, given: object) -> str:
    return f"shoal.{engine}.train always trains with on={engine!r}, and on={given!r} was given; leave on out"


def no_table(kind: str, wanted: str) -> str:
    """`wanted`: the class of the cluster's own tables."""
    return f"a {kind} was given as table; give a {wanted}, or the URL of Parquet files"


def at_without_table(place: str) -> str:
    return f"at={place!r} says where a table is written, and none was given; pass one, or leave at out"


def data_twice(name: str) -> str:
    return f"{name} is in arguments and is also what the function gets the rows as; leave it out of arguments"


def checkpoints_not_shared(nodes: Collection[str], place: str) -> str:
    several = "nodes do" if len(nodes) > 1 else "node does"
    return (
        f"{', '.join(sorted(nodes))}: the {several} not see {place} of this machine, so that checkpoints cannot be "
        "published; give --checkpoint-to a folder or URL that all machines reach, or --checkpoint-every never"
    )


# The first and the last line of a job

RECORD = "the record is in"
STARTING = "the workers are starting; importing torch takes a few seconds"


def still_starting(seconds: str) -> str:
    return f"no step and no output yet, after {seconds}: the script may be importing, or reading its data"


def gathering(workers: int, servers: int, script: str, engine: str) -> str:
    """`engine`: the value of --on."""
    return f"starting {_parties(workers, servers)} of {script} with --on {engine} ..."


def opening(workers: int, servers: int, script: str, run_dir: Path) -> str:
    """`servers`: those that the job starts itself."""
    verb = "runs" if workers == 1 and not servers else "run"
    return f"{_parties(workers, servers)} {verb} {script}; {RECORD} {run_dir}"


def going_on(workers: int, servers: int, script: str, run_dir: Path) -> str:
    verb = "goes" if workers == 1 and not servers else "go"
    return f"{_parties(workers, servers)} {verb} on with {script}; {RECORD} {run_dir}"


def _parties(workers: int, servers: int) -> str:
    who = "1 worker" if workers == 1 else f"{workers:,} workers"
    return f"{who} and {servers} parameter server{'s' * (servers > 1)}" if servers else who


def stopped(how: str, run_dir: Path, *, can_resume: bool) -> str:
    go_on = f"; `shoal run --resume {run_dir}` goes on" if can_resume else ""
    return f"{how}; {RECORD} {run_dir}{go_on}"


def reading_checkpoints(place: str) -> str:
    return f"looking for checkpoints in {place}"


# What takes a while

REACHING_NODES = "reaching the nodes"
REACHING_SERVERS = "reaching the server group"
WRITING_REPORT = "writing the report"


def waiting_for_coordinator(address: object) -> str:
    return f"waiting for the coordinator at {address}"


# What `shoal join` says

HANDING_OVER = f"handing over at the end of a step {AGAIN}"


def guest_started(worker: int, coordinator: object) -> str:
    return f"this is worker {worker} of the job at {coordinator}; it is let in at the end of a step"


def guest_is_in(worker: int | None, workers: int) -> str:
    return f"worker {worker} is in the job with {workers} workers"


def waiting_for_number(why: str) -> str:
    return f"waiting for a number: {why}"


def job_has_ended(how: str) -> str:
    return f"the job has ended: {how}"


# Stopping

STOPPING = f"stopping {AGAIN}"
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
