"""What launching says to people, in one place: mending a word here breaks no test, for tests refer to these texts too.

Messages that end a command, lines on the screen while a job runs, and phrases that both use. Not here: `--chaos`
(`chaos.texts`), run directories and tokens (`disk.texts`), and what workers and the coordinator say.
"""

from __future__ import annotations

from pathlib import Path

from shoal.membership.texts import AGAIN, STOP_WORDS, STOPPING_AFTER_STEP

__all__ = ["STOPPING_AFTER_STEP", "STOP_WORDS"]  # what others look for here too


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


def script_raised(what: str, worker: str, run_dir: Path) -> str:
    """`what`: the exception and where it was raised. `worker`: a number, or empty."""
    where, log = (f" on worker {worker}", f"logs/worker-{worker}.log") if worker else ("", "logs")
    return f"the script raised {what}{where}; the traceback is in {run_dir / log} too, the record is in {run_dir}"


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
