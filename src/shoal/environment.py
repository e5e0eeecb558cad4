"""The only reader of environment variables, and the only writer of those that a worker process gets.

Other programs use our prefix too: Kubernetes sets `SHOAL_PORT` and the like for a service named shoal. So an unknown
variable is ignored, and the user who starts a job is warned of a variable that looks like a misspelt one of ours
(`likely_typos`). Arguments beat the environment. torchrun's variables are set for plain torch scripts.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError
from shoal.values import Address

PREFIX = "SHOAL_"
COORDINATOR = "SHOAL_COORDINATOR"  # host:port of the job's coordinator
TOKEN_FILE = "SHOAL_TOKEN_FILE"  # noqa: S105  path of the file with the job's token; for the torch backend anybody may set it
WORKER = "SHOAL_WORKER"  # this worker's number in the job
PROCESS = "SHOAL_PROCESS"  # process id of the worker, set by the worker: distinguishes it from its child processes
NODE = "SHOAL_NODE"  # the node that this process runs on, as an engine over several machines names it
SCRIPT = "SHOAL_SCRIPT"  # the script's path on that node, where it may differ from the launcher's
FUNCTION_FILE = "SHOAL_FUNCTION_FILE"  # path of the file with the job's pickled function, where it may differ so too
RAY_ADDRESS = "RAY_ADDRESS"  # Ray's own: of the cluster to use
SPARK_SUBMIT = "PYSPARK_SUBMIT_ARGS"  # Spark's own: options of the driver that pyspark starts
TORCH_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # torch's own: whether it loads extensions, such as ours, at import
MALLOC = "GLIBC_TUNABLES"  # the C library's own
# A step frees every gradient and the next step allocates as much again. If malloc keeps that memory (up to 4 GiB) in
# large pages, the kernel need not zero it page by page each time. A step of a 25 M parameter model, without exchange:
# 103 ms with the defaults, 57 ms with these.
KEEPING_MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
TORCH_INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # interfaces on which gloo and torch's RPC listen
NATIVE = "SHOAL_NATIVE"  # 0: the C extension is not used, even if it was built
NCCL = "SHOAL_NCCL"  # 0: GPU tensors go through host memory, even if NCCL could carry them
KNOWN = (COORDINATOR, TOKEN_FILE, WORKER)  # variables that a worker must have
PLAINTEXT = "SHOAL_PLAINTEXT"  # 1: this process agrees to unencrypted connections to other machines
COPIES = "SHOAL_COPIES"  # 1: workers may train models of their own, without shoal.main and without a process group
OF_NCCL = "NCCL_"  # how NCCL's own variables begin, such as NCCL_SOCKET_IFNAME
SETTINGS = (NATIVE, NCCL, PLAINTEXT, COPIES)  # variables that any user may set
# Variables that Kubernetes sets in every container for a service whose name begins with shoal.
KUBERNETES = re.compile(r"SHOAL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_[A-Z]+(_PROTO|_PORT|_ADDR)?)?)")
LETTERS_PER_MISTAKE = 3  # a name counts as misspelt with at most one mistake per so many letters
MOST_MISTAKES = 2


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker process is told by the process that started it."""

    coordinator: Address
    token_file: str
    worker: int


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
    given = os.environ if variables is None else variables
    found = {name: given[name] for name in KNOWN if name in given}
    if not found or set(found) == {TOKEN_FILE}:  # users of plain torch scripts may set this one
        return None
    missing = [name for name in KNOWN if name not in found]
    if missing:
        raise UsageError(
            f"the environment has {', '.join(sorted(found))} but not {', '.join(missing)}; "
            "start workers with `shoal run`"
        )
    if not found[WORKER].isdigit():
        raise UsageError(f"the environment variable {WORKER} is {found[WORKER]!r}; it should be a number")
    return WorkerEnvironment(
        coordinator=parse_address(found[COORDINATOR], named=COORDINATOR),
        token_file=found[TOKEN_FILE],
        worker=int(found[WORKER]),
    )


def is_worker_itself() -> bool:
    """Whether this process, which has a worker's variables, is the worker and not one that the worker started.

    Engines make each of their processes the leader of a session. The first process that asks notes the answer in the
    environment, because a process that the worker starts may lead a session too.
    """
    own = str(os.getpid())
    if not os.environ.get(PROCESS):
        os.environ[PROCESS] = own if os.getsid(0) == os.getpid() else "0"
    return os.environ[PROCESS] == own


def likely_typos(variables: Mapping[str, str] | None = None) -> list[str]:
    """A warning for each variable whose name is nearly one of ours."""
    doubts = []
    for name in sorted(os.environ if variables is None else variables):
        if not name.startswith(PREFIX) or name in (*KNOWN, *SETTINGS) or KUBERNETES.fullmatch(name):
            continue
        meant = min((*KNOWN, *SETTINGS), key=lambda known: _mistakes(name, known))
        if _mistakes(name, meant) <= min(MOST_MISTAKES, (len(meant) - len(PREFIX)) // LETTERS_PER_MISTAKE):
            doubts.append(unknown_variable(name, meant))
    return doubts


def unknown_variable(name: str, meant: str) -> str:
    return f"the environment variable {name} is not one of Shoal's and is ignored; did you mean {meant}?"


def _mistakes(typed: str, meant: str) -> int:
    """How many letters were left out, added, changed or swapped with a neighbour (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(meant) + 1))  # distances of the part of `typed` read so far to all beginnings of `meant`
    for row, letter in enumerate(typed, 1):
        now = [row]
        for column, wanted in enumerate(meant, 1):
            best = min(last[column] + 1, now[-1] + 1, last[column - 1] + (letter != wanted))
            if row > 1 and column > 1 and letter == meant[column - 2] and typed[row - 2] == wanted:
                best = min(best, before[column - 2] + 1)
            now.append(best)
        before, last = last, now
    return last[-1]


def token_file() -> str | None:
    """The file with the secret of this process's job, or of the process groups that it makes with the torch backend."""
    return os.environ.get(TOKEN_FILE) or None


def plaintext() -> bool:
    """Whether this process talks to other machines without TLS, if they agree."""
    return _is_on(PLAINTEXT, default="0")


@contextlib.contextmanager
def in_plaintext(wanted: bool) -> Iterator[None]:
    """If `wanted`, this process and its children talk to other machines without TLS while the block runs."""
    before = os.environ.get(PLAINTEXT)
    if wanted:
        os.environ[PLAINTEXT] = "1"
    try:
        yield
    finally:
        if wanted and before is None:
            del os.environ[PLAINTEXT]
        elif wanted:
            os.environ[PLAINTEXT] = str(before)


def in_ray_cluster(address: str) -> contextlib.AbstractContextManager[None]:
    """Jobs of this process on Ray use the cluster at this address while the block runs."""
    return _with(RAY_ADDRESS, address)


def spark_submit_with(options: str) -> contextlib.AbstractContextManager[None]:
    """If pyspark starts Spark's driver while the block runs, it has these options of spark-submit, then the user's."""
    return _with(SPARK_SUBMIT, f"{options} {os.environ.get(SPARK_SUBMIT, 'pyspark-shell')}")


@contextlib.contextmanager
def _with(name: str, value: str) -> Iterator[None]:
    """The environment has this variable while the block runs."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def native_is_wanted() -> bool:
    return _is_on(NATIVE)


def nccl_is_wanted() -> bool:
    return _is_on(NCCL)


def copies_are_meant() -> bool:
    """Whether the copies of a script that a job runs may have nothing to do with each other."""
    return _is_on(COPIES, default="0")


def _is_on(name: str, default: str = "1") -> bool:
    value = os.environ.get(name, default)
    if value not in ("0", "1"):
        raise UsageError(f"the environment variable {name} is {value!r}; it should be 0 or 1")
    return value == "1"


def own_node() -> str:
    """The node that this process runs on; empty: its launcher's machine."""
    return os.environ.get(NODE, "")


def spans_nodes() -> bool:
    """Whether this process is one of a job on several nodes, by torchrun's variable GROUP_WORLD_SIZE."""
    return bool(own_node()) and os.environ.get("GROUP_WORLD_SIZE", "1") != "1"


def script_here(script: str) -> str:
    """The path on this machine of a script that the launcher calls `script`."""
    return os.environ.get(SCRIPT) or script


def function_file_here(file: str) -> str:
    """The path on this machine of a pickled function that the launcher has in `file`."""
    return os.environ.get(FUNCTION_FILE) or file


def node_variables(node: str, script: str) -> dict[str, str]:
    """What a node's processes are told of it. `script`: its path there; empty: there is none."""
    return {NODE: node, **({SCRIPT: script} if script else {})}


def thread_default(variables: Mapping[str, str], threads: int) -> dict[str, str]:
    """`variables` with a number of threads for torch, unless they or this process's environment have one."""
    has_one = "OMP_NUM_THREADS" in variables or "OMP_NUM_THREADS" in os.environ
    return dict(variables) if has_one else {**variables, "OMP_NUM_THREADS": str(threads)}


def travelling_variables() -> dict[str, str]:
    """The user's settings in this process's environment that processes on other machines need too."""
    ours = (*SETTINGS, "OMP_NUM_THREADS", MALLOC)
    return {name: value for name, value in os.environ.items() if name in ours or name.startswith(OF_NCCL)}


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a new process: this one's, with `variables` on top."""
    return {**os.environ, **variables}


def times_requeued(variable: str) -> int:
    """How often a cluster, which says it in this variable, has put the job of this process back into its queue."""
    count = os.environ.get(variable, "")
    return int(count) if count.isascii() and count.isdigit() else 0


def runtime_folder() -> Path:
    """The folder for short-lived private files: the user's runtime folder if there is one, else the temporary one."""
    named = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return named if named.is_dir() and os.access(named, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def torch_rank() -> int | None:
    """The present value of torchrun's variable RANK; a script may have changed it."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else None


def job_size() -> int:
    """How many workers the job has, by torchrun's variable WORLD_SIZE; 1 outside a job."""
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdigit() else 1


def store_is_the_agents() -> bool:
    """torchrun's agent, not rank 0, holds torch's store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def keep_torch_on_loopback() -> None:
    """Keep torch's own connections, which authenticate nobody, on this machine, since all ranks are on it."""
    for name in TORCH_INTERFACES:
        os.environ.setdefault(name, "lo")


def local_place() -> int:
    """This worker's number on its machine, from 0, by torchrun's variable LOCAL_RANK; 0 outside a job."""
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class TorchrunPlace:
    """A worker's place, as torchrun would describe it to plain torch scripts."""

    place: int  # 0..workers-1, on this machine
    workers: int
    master: Address  # for torch's own store


def process_variables(threads: int) -> dict[str, str]:
    """Variables that a process needs from its start: unbuffered output, torch's threads, malloc's settings.

    `threads` 0: the machine where the process runs decides.
    """
    is_given = "OMP_NUM_THREADS" in os.environ or not threads
    threads_default = {} if is_given else {"OMP_NUM_THREADS": str(threads)}
    memory_default = {} if MALLOC in os.environ else {MALLOC: KEEPING_MALLOC}
    return {"PYTHONUNBUFFERED": "1", **threads_default, **memory_default}


def spare_variables(threads: int) -> dict[str, str]:
    """For a process that becomes a worker later: torch must not load its extensions yet, which ask what it is."""
    return {**process_variables(threads), TORCH_AUTOLOAD: "0"}


def become_worker(variables: Mapping[str, str]) -> None:
    """Turn a process that was started with `spare_variables` into a worker."""
    del os.environ[TORCH_AUTOLOAD]
    os.environ.update(variables)


def autoload_choice() -> dict[str, str]:
    """The user's own setting about torch's extensions, if any, for `become_worker`."""
    return {TORCH_AUTOLOAD: os.environ[TORCH_AUTOLOAD]} if TORCH_AUTOLOAD in os.environ else {}


def worker_variables(coordinator: Address, worker: int, torchrun: TorchrunPlace, *, threads: int) -> dict[str, str]:
    """The variables of a new worker process: ours, torchrun's, and the number of threads torch may use.

    The engine adds `TOKEN_FILE`, since the path may differ on the machine where the process runs.
    """
    return {
        COORDINATOR: str(coordinator),
        WORKER: str(worker),
        PROCESS: "",  # clear it: the launcher may itself be a child of a worker
        "RANK": str(worker),
        "LOCAL_RANK": str(torchrun.place),
        "WORLD_SIZE": str(torchrun.workers),
        "LOCAL_WORLD_SIZE": str(torchrun.workers),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(worker),
        "ROLE_WORLD_SIZE": str(torchrun.workers),
        "MASTER_ADDR": torchrun.master.host,
        "MASTER_PORT": str(torchrun.master.port),
        **process_variables(threads),
    }
