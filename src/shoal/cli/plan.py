"""Which processes a job on this machine consists of, with their commands and variables. Starts nothing."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from shoal.engines.engine import ProcessSpec
from shoal.environment import TorchrunPlace, WorkerEnvironment, process_variables, spare_variables, worker_variables
from shoal.errors import UsageError
from shoal.job_config import MOST_LOCAL, JobConfig
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
    threads: int = 0  # of each worker, where the settings are not to say so
    master_port: int = 0  # on this machine, for torch's own store, which only plain torch scripts use
    record_start: int = 0  # bytes that earlier runs of a resumed job have left in events.jsonl


def check_size(config: JobConfig) -> None:
    if config.workers > MOST_LOCAL:
        raise UsageError(
            f"--workers is {config.workers}; one machine starts at most {MOST_LOCAL}: start a coordinator with "
            "`shoal coordinator` and add workers with `shoal join`"
        )


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
    """Those that a job begins with."""
    return [worker_process(job, worker, place=worker) for worker in range(job.config.workers)]


def worker_process(job: Job, worker: int, *, place: int, log: Path | None = None) -> ProcessSpec:
    """`place`, from 0 to workers - 1, is its own as long as it runs; its number is its own for ever."""
    return ProcessSpec(
        name=worker_name(worker),
        command=(sys.executable, job.script, *job.arguments),
        variables=_variables(job, worker, place),
        log=log or job.run_dir / "logs" / f"worker-{worker}.log",
    )


def spare_process(job: Job, number: int, descriptor: int) -> ProcessSpec:
    """It waits at `descriptor`, the reading end of a pipe, to be told which worker it is."""
    return ProcessSpec(
        name=f"spare {number}",
        command=(sys.executable, "-P", "-m", "shoal.cli.spare", str(descriptor)),
        variables={**spare_variables(_threads(job)), **_first_variables(job)},
        log=job.run_dir / "logs" / "spares.log",
        descriptors=(descriptor,),
    )


def _variables(job: Job, worker: int, place: int) -> dict[str, str]:
    environment = WorkerEnvironment(
        coordinator=job.coordinator, token_file=str(job.token_file), worker=worker, launcher=os.getpid()
    )
    torchrun = TorchrunPlace(place=place, workers=job.config.workers, master=Address("127.0.0.1", job.master_port))
    variables = worker_variables(environment, torchrun, threads=_threads(job))
    return {**variables, **_first_variables(job)}


def _first_variables(job: Job) -> dict[str, str]:
    variables = process_variables(_threads(job))
    if chosen := job.threads or job.config.threads:
        variables["OMP_NUM_THREADS"] = str(chosen)  # an option beats a variable of the launcher's environment
    return variables


def _threads(job: Job) -> int:
    return job.threads or job.config.threads or default_threads(job.config.workers)


def default_threads(workers: int) -> int:
    """The cores that this process may use, divided evenly."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def free_port() -> int:
    """For torch's own store. Another process could take it before rank 0 does: torch then says so."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
