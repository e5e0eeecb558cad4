"""The only reader of environment variables, and the only writer of those a worker process gets.

Variables with our prefix that nobody knows are an error, so that a typing mistake is never silently ignored. Arguments
beat the environment. torchrun's variables are written for plain torch scripts.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError
from shoal.values import Address

PREFIX = "SHOAL_"
COORDINATOR = "SHOAL_COORDINATOR"  # host:port of the job's coordinator
TOKEN_FILE = "SHOAL_TOKEN_FILE"  # noqa: S105  path of the file that holds the job's token
WORKER = "SHOAL_WORKER"  # this worker's number in the job
LAUNCHER = "SHOAL_LAUNCHER"  # process id of the parent that started this worker; tells a worker from its own children
TORCH_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # torch's own: whether it loads extensions, such as ours, at import
MALLOC = "GLIBC_TUNABLES"  # the C library's own
# A step frees every gradient and the next one takes as much again: memory that malloc keeps (up to 4 GiB), in large
# pages, need not be zeroed by the kernel page by page each time. A step of a 25 M parameter model, without exchange:
# 103 ms with the defaults, 57 ms with these.
KEEPING_MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
NATIVE = "SHOAL_NATIVE"  # 0: the C extension is not used, even where it was built
NCCL = "SHOAL_NCCL"  # 0: tensors of GPUs go through host memory, even where NCCL could carry them
KNOWN = (COORDINATOR, TOKEN_FILE, WORKER, LAUNCHER)  # what a worker must have
SETTINGS = (NATIVE, NCCL)  # what anybody may set


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker process is told by whoever started it."""

    coordinator: Address
    token_file: str
    worker: int
    launcher: int  # process id


def parse_address(text: str, *, named: str) -> Address:
    """host:port, with an IPv6 host in brackets. A missing port is 0: any free one."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "0"
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{named} is {text!r}; it should be HOST:PORT, such as 127.0.0.1:7000")
    return Address(host=host, port=int(port))


def worker_environment(variables: Mapping[str, str] | None = None) -> WorkerEnvironment | None:
    """None when this process was not started as a worker of a job."""
    found = {
        name: value
        for name, value in (os.environ if variables is None else variables).items()
        if name.startswith(PREFIX)
    }
    for name in SETTINGS:
        found.pop(name, None)
    for name in found:
        if name not in KNOWN:
            near = difflib.get_close_matches(name, (*KNOWN, *SETTINGS), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join((*KNOWN, *SETTINGS))}"
            raise UsageError(f"the environment variable {name} is not one of Shoal's; {hint}")
    if not found:
        return None
    missing = [name for name in KNOWN if name not in found]
    if missing:
        raise UsageError(
            f"the environment has {', '.join(sorted(found))} but not {', '.join(missing)}; "
            "start workers with `shoal run`"
        )
    for name in (WORKER, LAUNCHER):
        if not found[name].isdigit():
            raise UsageError(f"the environment variable {name} is {found[name]!r}; it should be a number")
    return WorkerEnvironment(
        coordinator=parse_address(found[COORDINATOR], named=COORDINATOR),
        token_file=found[TOKEN_FILE],
        worker=int(found[WORKER]),
        launcher=int(found[LAUNCHER]),
    )


def native_is_wanted() -> bool:
    return _is_on(NATIVE)


def nccl_is_wanted() -> bool:
    return _is_on(NCCL)


def _is_on(name: str) -> bool:
    value = os.environ.get(name, "1")
    if value not in ("0", "1"):
        raise UsageError(f"the environment variable {name} is {value!r}; it should be 0 or 1")
    return value == "1"


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a new process: this one's, with `variables` on top."""
    return {**os.environ, **variables}


def runtime_folder() -> Path:
    """Where short-lived private files go: the user's runtime folder where there is one, else the temporary one."""
    named = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return named if named.is_dir() and os.access(named, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def torch_rank() -> int | None:
    """What torchrun's variable RANK says in this process now; a script may have changed it."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else None


def local_place() -> int:
    """Which worker of its machine this process is, from 0, as torchrun's variable LOCAL_RANK says; 0 outside a job."""
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class TorchrunPlace:
    """What torchrun would say about a worker's place, for plain torch scripts."""

    place: int  # 0..workers-1, on this machine
    workers: int
    master: Address  # for torch's own store


def process_variables(threads: int) -> dict[str, str]:
    """What a process must have from its first moment on: unbuffered output, the number of threads torch may use."""
    threads_default = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    memory_default = {} if MALLOC in os.environ else {MALLOC: KEEPING_MALLOC}
    return {"PYTHONUNBUFFERED": "1", **threads_default, **memory_default}


def spare_variables(threads: int) -> dict[str, str]:
    """Those of a process that will be a worker later: torch must not ask yet what this process is."""
    return {**process_variables(threads), TORCH_AUTOLOAD: "0"}


def become_worker(variables: Mapping[str, str]) -> None:
    """In such a process, once it is known which worker it is."""
    del os.environ[TORCH_AUTOLOAD]
    os.environ.update(variables)


def autoload_choice() -> dict[str, str]:
    """What the user has set about torch's extensions, if anything, for `become_worker`."""
    return {TORCH_AUTOLOAD: os.environ[TORCH_AUTOLOAD]} if TORCH_AUTOLOAD in os.environ else {}


def worker_variables(worker: WorkerEnvironment, torchrun: TorchrunPlace, *, threads: int) -> dict[str, str]:
    """The variables of a new worker process: ours, torchrun's, and the number of threads torch may use."""
    return {
        COORDINATOR: str(worker.coordinator),
        TOKEN_FILE: worker.token_file,
        WORKER: str(worker.worker),
        LAUNCHER: str(worker.launcher),
        "RANK": str(worker.worker),
        "LOCAL_RANK": str(torchrun.place),
        "WORLD_SIZE": str(torchrun.workers),
        "LOCAL_WORLD_SIZE": str(torchrun.workers),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(worker.worker),
        "ROLE_WORLD_SIZE": str(torchrun.workers),
        "MASTER_ADDR": torchrun.master.host,
        "MASTER_PORT": str(torchrun.master.port),
        **process_variables(threads),
    }
