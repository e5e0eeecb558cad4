"""The processes of a job, with their commands and variables. Starts nothing."""

from __future__ import annotations

import difflib
import os
import re
import socket
import sys
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from shoal.engines.engine import BroughtFile, Placed, ProcessSpec
from shoal.entry.function_script import COMMAND, recorded_call
from shoal.environment import (
    FUNCTION_FILE,
    TOKEN_FILE,
    TorchrunPlace,
    process_variables,
    spare_variables,
    worker_variables,
)
from shoal.errors import UsageError
from shoal.events import ProcessPlaced
from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.launching.processes.running import JobProcess
from shoal.settings.engines.engine_settings import LOCAL
from shoal.settings.setting_checks import MOST_LOCAL
from shoal.values import Address

COORDINATOR = "coordinator"
# Programs that start scripts elsewhere; `shoal run` starts Python itself.
STARTERS = r"python[0-9.]*|torchrun|accelerate|deepspeed|mpirun|horovodrun"
NO_SCRIPTS = {".ipynb": "a notebook; call shoal.launch in it", ".sh": "a shell script; name the Python file it starts"}
RECORD_SECONDS = 2.0  # that the coordinator may outlive a killed launcher, to write the end of the record


@dataclass(frozen=True)
class Job:
    """What to run, decided before anything starts."""

    config: JobConfig
    script: str
    arguments: tuple[str, ...]
    run_dir: Path
    token_file: Path
    coordinator: Address  # where the coordinator listens, with its real port
    group_key_file: Path | None = None  # with the key of the job's own servers; None: the job starts none
    threads: int = 0  # of each worker; overrides the settings if not 0
    master_port: int = 0  # on this machine, for torch's own store, which only plain torch scripts use
    record_start: int = 0  # bytes that earlier runs of a resumed job have left in events.jsonl
    servers: str = ""  # where workers find the keeper of the parameter servers; empty: there are none
    space: str = ""  # the job's name on those servers
    is_elsewhere: bool = False  # workers and servers may run on other machines
    private_files: tuple[Path, ...] = ()  # besides tokens: removed, each with its folder, if the launcher is killed


def check_size(config: JobConfig) -> None:
    if config.workers > MOST_LOCAL and config.on == LOCAL:
        raise UsageError(texts.too_many_workers(config.workers, MOST_LOCAL))


def check_script(script: str) -> None:
    if not script:
        raise UsageError(texts.NO_SCRIPT)
    path = Path(script)
    if re.fullmatch(STARTERS, path.name):
        raise UsageError(texts.starter_given(script))
    if not path.exists():
        raise UsageError(texts.script_missing(script, _nearest_script(path)))
    if not path.is_file():
        raise UsageError(texts.script_is_no_file(script))
    if path.suffix in NO_SCRIPTS:
        raise UsageError(texts.no_python_file(script, NO_SCRIPTS[path.suffix]))


def _nearest_script(path: Path) -> str:
    """A Python file that was probably meant; empty where there is none."""
    likely = [path.with_name(f"{path.name}.py"), path.parent.joinpath(*path.name.split(".")).with_suffix(".py")]
    there = [str(file) for file in likely if file.is_file()]
    names = {file.name: file for file in path.parent.glob("*.py")} if path.parent.is_dir() else {}
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return next(iter(there + [str(names[name]) for name in close]), "")


def worker_name(worker: int) -> str:
    return f"worker {worker}"


def server_name(server: int) -> str:
    return f"server {server}"


def placed(happened: Placed) -> ProcessPlaced:
    """The event of a process that an engine has found a place for."""
    kind, _, number = happened.name.partition(" ")
    return ProcessPlaced(
        process=happened.name,
        node=happened.node,
        host=happened.host,
        reason=happened.reason,
        worker=int(number) if kind == "worker" else None,
        server=int(number) if kind == "server" else None,
    )


def coordinator_process(job: Job, listener: socket.socket, lock: FileIO) -> JobProcess:
    """The coordinator inherits the listening socket and the lock of the run directory, which it holds with the
    launcher."""
    # -P: a module in the current folder may have the name of one of the standard library.
    command = (
        *(sys.executable, "-P", "-m", "shoal", "coordinator", f"--listen-fd={listener.fileno()}"),
        *(f"--lock-fd={lock.fileno()}", f"--token-file={job.token_file}", f"--config={job.run_dir / 'config.toml'}"),
        f"--given={','.join(job.config.given)}",
        *((f"--servers-at={job.servers}", f"--servers-space={job.space}") if job.servers else ()),
        *("--", job.script, *job.arguments),
    )
    return JobProcess(
        ProcessSpec(name=COORDINATOR, command=command, variables={}, outlives_launcher=RECORD_SECONDS),
        log=job.run_dir / "logs" / "coordinator.log",
        descriptors=(listener.fileno(), lock.fileno()),
    )


def worker_processes(job: Job) -> list[JobProcess]:
    """The workers that a job begins with."""
    return [worker_process(job, worker, place=worker) for worker in range(job.config.workers)]


def worker_process(job: Job, worker: int, *, place: int) -> JobProcess:
    """`place`: from 0 to workers - 1; reused when the worker is gone, unlike its number."""
    is_function_elsewhere = job.is_elsewhere and recorded_call(job.script, job.arguments) is not None
    started = COMMAND if is_function_elsewhere else (job.script,)
    spec = ProcessSpec(
        name=worker_name(worker),
        command=(sys.executable, *started, *job.arguments),
        variables=_variables(job, worker, place),
        files=_brought(job),
        script="" if is_function_elsewhere else job.script,
    )
    return JobProcess(spec, log=job.run_dir / "logs" / f"worker-{worker}.log")


def _brought(job: Job) -> tuple[BroughtFile, ...]:
    """Files that only a worker's user can read."""
    call = recorded_call(job.script, job.arguments)
    function = (BroughtFile(Path(call.pickle), FUNCTION_FILE),) if call is not None and call.pickle else ()
    return (BroughtFile(job.token_file, TOKEN_FILE), *function)


@dataclass(frozen=True)
class ServerTerms:
    """What the parameter servers of one group have in common."""

    keeper: Address  # where servers find the keeper on this machine
    token_file: Path
    logs: Path | None  # folder; None: output is not kept
    listen: str  # host; auto: the address of the server's machine that leads to the keeper
    memory: int  # bytes that each server may hold


def server_process(terms: ServerTerms, server: int) -> JobProcess:
    """One thread per server: a server is a single loop, and other processes need the cores.

    No GPU: servers compute on the CPU, and torch's optimizers would occupy any GPU that they see.
    """
    command = (
        *(sys.executable, "-P", "-m", "shoal", "server", f"--keeper={terms.keeper}"),
        *(f"--number={server}", f"--listen={terms.listen}", f"--memory={terms.memory}"),
    )
    spec = ProcessSpec(
        name=server_name(server),
        command=command,
        variables={**process_variables(1), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        files=(BroughtFile(terms.token_file, TOKEN_FILE),),
        takes_slot=False,
        apart=True,
    )
    return JobProcess(spec, log=None if terms.logs is None else terms.logs / f"server-{server}.log")


def spare_process(job: Job, number: int) -> JobProcess:
    """A process that waits until its standard input says which worker it becomes."""
    spec = ProcessSpec(
        name=f"spare {number}",
        command=(sys.executable, "-P", "-m", "shoal.entry.spare"),
        variables={**spare_variables(_threads(job)), **_first_variables(job)},
        files=_brought(job),
        takes_input=True,
        takes_slot=False,
    )
    return JobProcess(spec, log=job.run_dir / "logs" / "spares.log")


def _variables(job: Job, worker: int, place: int) -> dict[str, str]:
    torchrun = TorchrunPlace(place=place, workers=job.config.workers, master=Address("127.0.0.1", job.master_port))
    variables = worker_variables(job.coordinator, worker, torchrun, threads=_threads(job))
    return {**variables, **_first_variables(job)}


def _first_variables(job: Job) -> dict[str, str]:
    variables = process_variables(_threads(job))
    if chosen := job.threads or job.config.threads:
        variables["OMP_NUM_THREADS"] = str(chosen)  # an option beats a variable of the launcher's environment
    return variables


def _threads(job: Job) -> int:
    """0: each node divides its own cores."""
    return job.threads or job.config.threads or (0 if job.is_elsewhere else default_threads(job.config.workers))


def default_threads(workers: int) -> int:
    """The cores that this process may use, divided evenly."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def held_port() -> socket.socket:
    """A free port for torch's own store, held until the socket is closed.

    The socket is bound but does not listen. So rank 0, which sets SO_REUSEADDR as servers do, can listen there, while
    the system gives the port to no other process that asks for any free one.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  the address to use on the same machine


def reachable(bound: Address) -> Address:
    """The address at which processes on this machine reach a listener that is bound there."""
    return Address(host=ANYWHERE.get(bound.host, bound.host), port=bound.port)


def public(bound: Address) -> Address:
    """The address at which processes on other machines reach a listener that is bound there."""
    return Address(socket.gethostname(), bound.port) if bound.host in ANYWHERE else bound
