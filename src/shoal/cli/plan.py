"""Which processes a job on this machine consists of, with their commands and variables. Starts nothing."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from shoal.engines.engine import ProcessSpec
from shoal.environment import WorkerEnvironment, worker_variables
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.values import Address

COORDINATOR = "coordinator"
RECORD_SECONDS = 2.0  # that the coordinator may outlive a killed launcher, to write the end of the record


@dataclass(frozen=True)
class Job:
    """What is to be run, settled before anything starts."""

    config: JobConfig
    script: str
    arguments: tuple[str, ...]
    run_dir: Path
    token_file: Path
    coordinator: Address  # where it listens, with its real port
    record_start: int = 0  # bytes that earlier runs of a resumed job have left in events.jsonl


def check_script(script: str) -> None:
    if not script:
        raise UsageError("no script given; name the Python file to run")
    path = Path(script)
    if not path.exists():
        raise UsageError(f"the script {script} does not exist (looked in {Path.cwd()})")
    if not path.is_file():
        raise UsageError(f"the script {script} is not a file; name the Python file to run")


def worker_name(worker: int) -> str:
    return f"worker {worker}"


def coordinator_process(job: Job, listener: socket.socket, lock: FileIO) -> ProcessSpec:
    """It inherits the listening socket, and the lock of the run directory, which is free when both are gone."""
    # -P: the current folder may hold a module with a name of the standard library's.
    command = (
        *(sys.executable, "-P", "-m", "shoal", "coordinator", f"--listen-fd={listener.fileno()}"),
        *(f"--lock-fd={lock.fileno()}", f"--token-file={job.token_file}", f"--config={job.run_dir / 'config.toml'}"),
        *("--", job.script, *job.arguments),
    )
    return ProcessSpec(
        name=COORDINATOR,
        command=command,
        variables={},
        log=job.run_dir / "logs" / "coordinator.log",
        descriptors=(listener.fileno(), lock.fileno()),
        outlives_launcher=RECORD_SECONDS,
    )


def worker_processes(job: Job) -> list[ProcessSpec]:
    config = job.config
    master = Address(host="127.0.0.1", port=free_port())
    return [
        ProcessSpec(
            name=worker_name(worker),
            command=(sys.executable, job.script, *job.arguments),
            variables=_variables(job, worker, master),
            log=job.run_dir / "logs" / f"worker-{worker}.log",
        )
        for worker in range(config.workers)
    ]


def _variables(job: Job, worker: int, master: Address) -> dict[str, str]:
    environment = WorkerEnvironment(
        coordinator=job.coordinator, token_file=str(job.token_file), worker=worker, launcher=os.getpid()
    )
    threads = job.config.threads or default_threads(job.config.workers)
    variables = worker_variables(environment, workers=job.config.workers, master=master, threads=threads)
    if job.config.threads:
        variables["OMP_NUM_THREADS"] = str(threads)  # an option beats a variable of the launcher's environment
    return variables


def default_threads(workers: int) -> int:
    """The cores that this process may use, divided evenly."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def free_port() -> int:
    """For torch's own store. Another process could take it before rank 0 does: torch then says so."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
